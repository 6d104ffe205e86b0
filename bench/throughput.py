async def measure(home):
    pass
