"""placeholder to be replaced"""


def run_demo(keep: object) -> int:
    return 0
