"""The words of the sample: places, institutions, people, and eight domains with what they measure and how they write about it.

Data only. It is the same for every seed; a seed only draws from it.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Name, country, latitude, longitude. In the order of how often they are drawn.
PLACES: tuple[tuple[str, str, float, float], ...] = (
    ("Zürich", "CH", 47.37, 8.54),
    ("São Paulo", "BR", -23.55, -46.63),
    ("東京", "JP", 35.68, 139.69),
    ("Bloomington", "US", 39.17, -86.53),
    ("London", "GB", 51.51, -0.13),
    ("Berlin", "DE", 52.52, 13.4),
    ("New York", "US", 40.71, -74.01),
    ("München", "DE", 48.14, 11.58),
    ("Paris", "FR", 48.86, 2.35),
    ("大阪", "JP", 34.69, 135.5),
    ("København", "DK", 55.68, 12.57),
    ("Göteborg", "SE", 57.71, 11.97),
    ("Kraków", "PL", 50.06, 19.94),
    ("Łódź", "PL", 51.76, 19.46),
    ("Malmö", "SE", 55.6, 13.0),
    ("Genève", "CH", 46.2, 6.14),
    ("Bogotá", "CO", 4.71, -74.07),
    ("Ciudad de México", "MX", 19.43, -99.13),
    ("Reykjavík", "IS", 64.15, -21.94),
    ("Tromsø", "NO", 69.65, 18.96),
    ("Αθήνα", "GR", 37.98, 23.73),
    ("Москва", "RU", 55.76, 37.62),
    ("Київ", "UA", 50.45, 30.52),
    ("上海", "CN", 31.23, 121.47),
    ("北京", "CN", 39.9, 116.41),
    ("서울", "KR", 37.57, 126.98),
    ("القاهرة", "EG", 30.04, 31.24),
    ("İstanbul", "TR", 41.01, 28.98),
    ("Düsseldorf", "DE", 51.23, 6.77),
    ("Québec", "CA", 46.81, -71.21),
    ("Montréal", "CA", 45.5, -73.57),
    ("Nairobi", "KE", -1.29, 36.82),
    ("Lagos", "NG", 6.52, 3.38),
    ("Cape Town", "ZA", -33.92, 18.42),
    ("Sydney", "AU", -33.87, 151.21),
    ("Wellington", "NZ", -41.29, 174.78),
    ("Ōtautahi", "NZ", -43.53, 172.64),
    ("Mumbai", "IN", 19.08, 72.88),
    ("दिल्ली", "IN", 28.61, 77.21),
    ("Hà Nội", "VN", 21.03, 105.85),
    ("Đà Nẵng", "VN", 16.05, 108.2),
    ("Singapore", "SG", 1.35, 103.82),
    ("Jakarta", "ID", -6.21, 106.85),
    ("Manila", "PH", 14.6, 120.98),
    ("Valparaíso", "CL", -33.05, -71.61),
    ("Lima", "PE", -12.05, -77.04),
    ("Córdoba", "AR", -31.42, -64.18),
    ("Monterey", "US", 36.6, -121.89),
    ("Woods Hole", "US", 41.52, -70.67),
    ("Honolulu", "US", 21.31, -157.86),
    ("Anchorage", "US", 61.22, -149.9),
    ("Seattle", "US", 47.61, -122.33),
    ("Chicago", "US", 41.88, -87.63),
    ("Saint-Étienne", "FR", 45.44, 4.39),
    ("Besançon", "FR", 47.24, 6.02),
    ("Brest", "FR", 48.39, -4.49),
    ("Kiel", "DE", 54.32, 10.14),
    ("Tübingen", "DE", 48.52, 9.06),
    ("Graz", "AT", 47.07, 15.44),
    ("Plzeň", "CZ", 49.75, 13.38),
    ("Škofja Loka", "SI", 46.17, 14.31),
    ("Győr", "HU", 47.68, 17.63),
    ("Iași", "RO", 47.16, 27.59),
    ("Jyväskylä", "FI", 62.24, 25.75),
    ("Tartu", "EE", 58.38, 26.72),
    ("A Coruña", "ES", 43.36, -8.41),
    ("Málaga", "ES", 36.72, -4.42),
    ("Braga", "PT", 41.55, -8.43),
    ("L’Aquila", "IT", 42.35, 13.4),
    ("Catania", "IT", 37.5, 15.09),
    ("St. John's", "CA", 47.56, -52.71),
    ("Longyearbyen", "NO", 78.22, 15.65),
)

#: How institutions are called, in the order of the domains that they mostly work in; `{}` is a place.
INSTITUTIONS: tuple[str, ...] = (
    "University of {}",
    "{} City Works",
    "Institute of Geophysics, {}",
    "{} Marine Laboratory",
    "{} Exchange AG",
    "Hospital {}",
    "{} Transit & Roads",
    "{} Software Foundation",
)

GIVEN: tuple[str, ...] = (
    *("anna", "ben", "chiara", "deniz", "emil", "fatima", "goran", "hana", "ines", "jun", "katja", "luis", "mei", "noor", "ola"),
    *("priya", "quentin", "rosa", "sven", "tomas", "uma", "viktor", "wanjiru", "xin", "yara", "zoe"),
)
FAMILY: tuple[str, ...] = (
    *(
        "keller",
        "silva",
        "tanaka",
        "novak",
        "okafor",
        "jensen",
        "rossi",
        "moreau",
        "garcia",
        "kim",
        "nguyen",
        "schmidt",
        "ivanova",
    ),
    *("brown", "sharma", "haddad", "lindqvist", "kowalska", "mbeki", "oconnor", "papadakis", "yilmaz", "fernandes", "weber"),
)
SYSTEMS: tuple[str, ...] = ("gateway", "collector", "feed", "bridge", "logger", "relay", "ingest", "pipeline")


@dataclass(frozen=True, slots=True)
class Measure:
    """A quantity with its unit, and the range and precision of its readings."""

    name: str
    unit: str
    low: float
    high: float
    decimals: int


@dataclass(frozen=True, slots=True)
class Domain:
    name: str
    #: First letters of serial numbers.
    prefix: str
    namespace: str
    areas: tuple[str, ...]
    things: tuple[str, ...]
    makers: tuple[str, ...]
    states: tuple[str, ...]
    measures: tuple[Measure, ...]
    keywords: tuple[str, ...]
    #: Sentences; {thing}, {n}, {place}, {measure}, {unit}, {area}, {maker}, {state}, {value}, {minutes} stand for what was drawn.
    sentences: tuple[str, ...]
    notes: tuple[str, ...]


DOMAINS: tuple[Domain, ...] = (
    Domain(
        "sensors",
        "WX",
        "urn:example:weather:2",
        ("weather", "air-quality", "hydrology", "agriculture", "avalanche"),
        ("station", "mast", "gauge", "logger", "node"),
        ("Vaisala", "Campbell", "Lufft", "Sensirion", "Davis"),
        ("operational", "calibrating", "degraded", "offline"),
        (
            Measure("temperature", "°C", -35, 44, 1),
            Measure("humidity", "%", 4, 100, 0),
            Measure("pressure", "hPa", 940, 1055, 1),
            Measure("wind_speed", "m/s", 0, 48, 1),
            Measure("pm25", "µg/m³", 0, 260, 1),
            Measure("rainfall", "mm/h", 0, 90, 2),
            Measure("snow_depth", "cm", 0, 420, 0),
        ),
        ("weather", "climate", "air", "telemetry", "real-time", "WMO", "particulates", "Föhn"),
        (
            "Readings of {measure} in {unit} from {thing} {n} at {place}, one message every {minutes} minutes.",
            "Quality flags follow the network's manual; the {maker} instrument is {state}.",
            "Gaps longer than {minutes} min are filled from the neighbouring {thing}.",
            "The last calibration gave an offset of {value} {unit}.",
            "Part of the {area} programme of {place}; raw values, not corrected for altitude.",
        ),
        ("shielded & ventilated", "replaces the old mast", "values < 0 are possible", "see the log of 2019"),
    ),
    Domain(
        "buildings",
        "BM",
        "urn:example:building:1",
        ("hvac", "lighting", "access", "elevators", "energy", "fire-safety"),
        ("room", "chiller", "meter", "damper", "door", "lift"),
        ("Siemens", "Honeywell", "Belimo", "Schneider", "Trane"),
        ("normal", "alarm", "override", "maintenance"),
        (
            Measure("co2", "ppm", 380, 2400, 0),
            Measure("setpoint", "°C", 16, 27, 1),
            Measure("power", "kW", 0, 850, 2),
            Measure("occupancy", "persons", 0, 320, 0),
            Measure("flow", "l/s", 0, 75, 1),
            Measure("illuminance", "lx", 0, 1900, 0),
        ),
        ("BACnet", "building", "comfort", "energy", "facility", "occupancy", "Gebäude", "HVAC"),
        (
            "Events of {thing} {n} in the {area} system of the building in {place}, with {measure} in {unit}.",
            "Controller by {maker}; its state is {state} and is sent on change.",
            "Setpoints are {value} {unit} by day and lower at night.",
            "The facility team of {place} reads this topic; ask before commanding the {thing}.",
            "Heartbeats come every {minutes} minutes even when nothing changes.",
        ),
        ("heating & cooling", "second floor, west wing", "commissioned again after refit", "do not lock"),
    ),
    Domain(
        "seismology",
        "SG",
        "urn:example:quake:3",
        ("broadband", "strong-motion", "infrasound", "geodesy", "tsunami"),
        ("station", "array", "borehole", "vault", "receiver"),
        ("Trillium", "Güralp", "Kinemetrics", "Streckeisen", "Geotech"),
        ("streaming", "triggered", "noisy", "down"),
        (
            Measure("magnitude", "Mw", 0.1, 8.1, 1),
            Measure("depth", "km", 0, 680, 1),
            Measure("acceleration", "cm/s²", 0, 980, 3),
            Measure("sample_rate", "Hz", 1, 500, 0),
            Measure("displacement", "mm", -90, 90, 2),
        ),
        ("earthquake", "waveform", "miniSEED", "FDSN", "seismic", "P-wave", "séisme", "地震"),
        (
            "Waveforms of {thing} {n} near {place}, channel {measure} in {unit}, packets of {minutes} s.",
            "Triggered events carry origin, depth and a first estimate of {value} {unit}.",
            "The {maker} sensor stands on rock; its state is {state}.",
            "Picks of the {area} group are published within {minutes} seconds.",
            "Times are UTC and disciplined by GNSS; leap seconds are flagged.",
        ),
        ("vault re-sealed", "P & S picks", "noise from the quarry at noon", "co-located with GNSS"),
    ),
    Domain(
        "oceanography",
        "OC",
        "urn:example:ocean:1",
        ("buoys", "gliders", "tide-gauges", "moorings", "drifters", "hydrophones"),
        ("buoy", "glider", "float", "mooring", "tide-gauge"),
        ("Sea-Bird", "Nortek", "Teledyne", "Sofar", "Aanderaa"),
        ("deployed", "adrift", "recovered", "lost"),
        (
            Measure("salinity", "PSU", 2, 41, 3),
            Measure("sea_temperature", "°C", -1.9, 33, 2),
            Measure("wave_height", "m", 0, 19, 2),
            Measure("chlorophyll", "mg/m³", 0, 60, 2),
            Measure("current_speed", "m/s", 0, 3, 2),
            Measure("sea_level", "m", -4, 7, 3),
        ),
        ("ocean", "Argo", "tide", "salinity", "mooring", "plankton", "océan", "海洋"),
        (
            "Profiles of {measure} ({unit}) from {thing} {n} off {place}, sent when it surfaces.",
            "The {maker} CTD is {state}; the next service cruise leaves from {place}.",
            "Position is rounded to {minutes} arc minutes until the campaign ends.",
            "Median of the last week: {value} {unit}.",
            "Delayed-mode files of the {area} group replace these messages after a year.",
        ),
        ("bio-fouling & drift corrected", "lost its sail", "kelp canopy above", "iridium short bursts"),
    ),
    Domain(
        "finance",
        "FX",
        "urn:example:market:4",
        ("equities", "bonds", "fx", "derivatives", "indices", "funds"),
        ("quote", "order-book", "trade", "fixing", "index"),
        ("SIX", "Xetra", "Tradegate", "B3", "JPX"),
        ("open", "auction", "halted", "closed"),
        (
            Measure("price", "CHF", 0.05, 4200, 2),
            Measure("volume", "shares", 1, 2_500_000, 0),
            Measure("spread", "bp", 0.1, 250, 1),
            Measure("yield", "%", -0.9, 14, 3),
            Measure("turnover", "M€", 0, 900, 1),
        ),
        ("market-data", "level-2", "delayed", "ISIN", "tick", "Börse", "dividend", "clearing"),
        (
            "Ticks of {thing} {n} listed in {place}: {measure} in {unit}, delayed by {minutes} minutes.",
            "Source is {maker}; the market was {state} when this was written.",
            "Reference value at the last fixing: {value} {unit}.",
            "Redistribution of the {area} feed outside {place} needs a licence.",
            "Corporate actions are announced on a topic of their own.",
        ),
        ("Procter & Söhne excluded", "bid < ask is checked", "rounded to ticks", "ex dividend"),
    ),
    Domain(
        "health",
        "MD",
        "urn:example:care:2",
        ("icu", "laboratory", "imaging", "pharmacy", "ward", "ambulance"),
        ("monitor", "pump", "analyser", "bed", "ventilator"),
        ("Philips", "Dräger", "Roche", "Mindray", "Getinge"),
        ("in-use", "standby", "cleaning", "recalled"),
        (
            Measure("heart_rate", "1/min", 28, 210, 0),
            Measure("spo2", "%", 60, 100, 0),
            Measure("glucose", "mmol/l", 1.5, 32, 1),
            Measure("infusion_rate", "ml/h", 0, 999, 1),
            Measure("turnaround", "min", 3, 480, 0),
        ),
        ("HL7", "FHIR", "patient-safety", "device", "alarm", "Notfall", "telemetry", "ward"),
        (
            "Device events of {thing} {n}, {area}, hospital in {place}; {measure} in {unit}, no patient data.",
            "The {maker} device is {state}; alarms repeat every {minutes} minutes until confirmed.",
            "Upper limit set by the ward: {value} {unit}.",
            "Only the biomedical engineers of {place} may command the {thing}.",
            "Clock drift is reported with each message.",
        ),
        ("cleaned & checked", "battery < 20 % twice", "loan from the second ward", "firmware held back"),
    ),
    Domain(
        "traffic",
        "TR",
        "urn:example:road:1",
        ("motorway", "urban", "rail", "bus", "parking", "cycling"),
        ("loop", "camera", "signal", "gantry", "stop", "counter"),
        ("Swarco", "Kapsch", "Yunex", "Iteris", "Thales"),
        ("free-flow", "dense", "congested", "blocked"),
        (
            Measure("vehicles", "1/h", 0, 8200, 0),
            Measure("mean_speed", "km/h", 0, 168, 1),
            Measure("delay", "s", -60, 5400, 0),
            Measure("free_spaces", "lots", 0, 1400, 0),
            Measure("headway", "s", 0.4, 95, 1),
        ),
        ("DATEX", "GTFS", "mobility", "congestion", "roadworks", "Tram", "trânsito", "交通"),
        (
            "Counts of {thing} {n} on the {area} network of {place}: {measure} ({unit}) over {minutes} minutes.",
            "State at the time of writing: {state}; detector by {maker}.",
            "Typical value on a weekday morning: {value} {unit}.",
            "Works between {place} and the ring road may change the lanes.",
            "Number plates are hashed in the {thing} and never leave it.",
        ),
        ("lane 1 & 2 merged", "ramp closed at night", "counts < 5 are hidden", "school route"),
    ),
    Domain(
        "builds",
        "CI",
        "urn:example:build:5",
        ("compiler", "kernel", "webapp", "firmware", "mobile", "infra"),
        ("pipeline", "runner", "artefact", "suite", "release"),
        ("Jenkins", "Buildbot", "Tekton", "Concourse", "Drone"),
        ("passed", "failed", "flaky", "cancelled", "queued"),
        (
            Measure("duration", "s", 4, 9800, 1),
            Measure("coverage", "%", 0, 100, 1),
            Measure("tests", "cases", 1, 48_000, 0),
            Measure("binary_size", "KiB", 2, 690_000, 0),
            Measure("warnings", "lines", 0, 5100, 0),
        ),
        ("CI", "build", "nightly", "regression", "SBOM", "x86_64", "aarch64", "déploiement"),
        (
            "Results of {thing} {n} for the {area} branch, built in {place}; {measure} in {unit}.",
            "Runs on {maker}; the last one {state} after {minutes} minutes.",
            "Budget: {value} {unit}; above it the {thing} is marked.",
            "Logs are kept for {minutes} days, artefacts until the next release.",
            "Owners of the {area} code in {place} are told of the first failure only.",
        ),
        ("-O2 & LTO", "flaky on weekends", "if warnings < 10 then strict", "bisected to a merge"),
    ),
)
