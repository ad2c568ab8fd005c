"""What a report's command line may ask for."""

import pytest

from spark_jobs import report


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--step=0h", "t"], "not a duration: '0h'"),
        (["--step=1w", "t"], "not a duration: '1w'"),
        (["--step=1000000000000000d", "t"], "not a duration: '1000000000000000d'"),
        (["--from=tomorrow", "t"], "not a time: 'tomorrow'"),
        (["--key-prefix-length=0", "t"], "not a number: '0'"),
        (["--key-prefix-length=1", "--key-delimiter=/", "t"], "not allowed with argument"),
        (["a/b"], "not a topic name: 'a/b'"),
        (["non-persistent://a/b/c"], "not a topic that is stored: 'non-persistent://a/b/c'"),
        (["--conf=x", "t"], "not a setting: 'x'"),
    ],
)
def test_arguments_that_are_wrong_are_named(wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        report.main(["--service-url=pulsar://x", "--web-url=http://x", "--output=x", *wrong])
    assert said in capsys.readouterr().err
