"""Generates the protocol's Python module and its type stub from `pulsar.proto`.

Run by `make proto`. The test `test_protocol_generated.py` calls `generate` into a temporary
folder and compares, so that the committed modules cannot drift from the `.proto`.
"""

from pathlib import Path

PROTOCOL = Path(__file__).parent.parent / "bridge" / "protocol"
GENERATED = ("pulsar_pb2.py", "pulsar_pb2.pyi")


def generate(target: Path) -> None:
    """Write `pulsar_pb2.py` and `pulsar_pb2.pyi` into the folder `target`.

    Raises RuntimeError when the compiler refuses the file.
    """
    from grpc_tools import protoc

    arguments = ["protoc", f"-I{PROTOCOL}", f"--python_out={target}", f"--pyi_out={target}", "pulsar.proto"]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc refused pulsar.proto")


if __name__ == "__main__":
    generate(PROTOCOL)
