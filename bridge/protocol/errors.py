"""What can be wrong with the bytes of a peer."""


class ProtocolError(Exception):
    """The peer broke the protocol; its connection cannot be used any more."""


class FrameTooLarge(ProtocolError):
    """A frame announces more bytes than the limit of this connection."""


class MalformedFrame(ProtocolError):
    """A frame's sizes contradict each other, or its command cannot be parsed."""
