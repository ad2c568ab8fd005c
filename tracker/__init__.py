"""The delayed index: no asyncio, no sockets, no clock reads."""
