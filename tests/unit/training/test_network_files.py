"""The files through which ranks and agents exchange grants and reports of in-network aggregation."""

import json
from dataclasses import replace

import pytest

from plait.core.errors import InputError
from plait.runtime.network import report as reports
from plait.runtime.network.grant import VARIABLE, GrantFile, NetworkGrant, new_token, read_grant, write_grant
from plait.runtime.network.report import NetworkEvent, NetworkReport, read_report, write_report

GRANT = NetworkGrant(
    version=3,
    granted=True,
    job=7,
    token="00112233445566ff",
    n_workers=2,
    switch=("127.0.0.1", 4000),
    switch_name="tor0",
    options={"protocol": "esa", "window": 64},
    size=512,
    slots=4096,
)


def test_a_grant_comes_back_and_only_its_owner_reads_it(tmp_path) -> None:
    file = tmp_path / "network.json"
    write_grant(file, GRANT)
    assert read_grant(file) == GRANT
    assert read_grant(file).secret == bytes.fromhex("00112233445566ff")
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex(new_token())) == 8
    assert new_token() != new_token()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"token": "zz"}, "token is not 16 hexadecimal digits"),
        ({"token": "00"}, "token is not 16 hexadecimal digits"),
        ({"job": 65536}, "job is 65536; a grant takes 0 to 65535"),
        ({"n_workers": 0}, "n_workers is 0; a grant takes 1 to 64"),
        ({"priority": 256}, "priority is 256; a grant takes 0 to 255"),
        ({"size": -1}, "size is -1; a grant takes 0 or more"),
        ({"switch": None}, "without the address of a switch"),
    ],
)
def test_what_no_rank_could_use_is_refused(tmp_path, changed, message) -> None:
    with pytest.raises(InputError, match=message):
        write_grant(tmp_path / "network.json", replace(GRANT, **changed))
    write_grant(tmp_path / "network.json", replace(GRANT, granted=False, **changed))  # nobody looks at the rest


def test_a_rank_reads_the_file_again_only_when_it_changes(tmp_path, monkeypatch) -> None:
    assert GrantFile.of({}) is None
    grants = GrantFile.of({VARIABLE: str(tmp_path / "network.json")})
    assert grants.newest() is None
    assert "does not exist" in grants.trouble
    write_grant(grants.path, GRANT)
    assert grants.newest() == GRANT
    assert grants.trouble == ""
    with monkeypatch.context() as patch:
        patch.setattr("plait.runtime.network.grant.read_grant", lambda path: pytest.fail("it has not changed"))
        assert grants.newest() == GRANT
    newer = replace(GRANT, version=4, epoch=1, offset=512)
    write_grant(grants.path, newer)
    assert grants.newest() == newer
    write_grant(grants.path, GRANT)  # an older one, by a writer that was late
    assert grants.newest() == newer
    grants.path.write_text('{"version": 5, "granted": "yes"}')
    assert grants.newest() == newer
    assert "network.json: NetworkGrant.granted is 'yes'" in grants.trouble
    grants.path.write_text("{")
    assert grants.newest() == newer
    assert "is not JSON" in grants.trouble


def test_a_grant_has_one_user_for_each_rank(tmp_path, monkeypatch) -> None:
    file = tmp_path / "network.json"
    first, second, of_another_rank = (GrantFile(file) for _ in range(3))
    assert first.claim(0)
    assert first.claim(0)
    assert not second.claim(0)
    assert of_another_rank.claim(1)
    monkeypatch.setattr("plait.runtime.network.grant._claimed", set())  # another process
    assert not GrantFile(file).claim(0)
    nowhere = tmp_path / "gone" / "network.json"  # where no file can be made, within the process at least
    assert GrantFile(nowhere).claim(0)
    assert not GrantFile(nowhere).claim(0)


def test_a_report_comes_back_with_its_shares(tmp_path) -> None:
    assert read_report(tmp_path) is None
    report = NetworkReport(
        mode="aggregation",
        aggregated=3,
        aggregated_bytes=300,
        fallback={"timeouts": 1},
        fallback_bytes=100,
        sent=90,
        resent=10,
        results=80,
        collided=20,
        events=(NetworkEvent(1.5, "aggregates through tor0"),),
    )
    write_report(tmp_path, report)
    found = read_report(tmp_path)
    assert replace(found, events=tuple(found.events)) == report
    assert (found.fallback_share, found.collided_share, found.resend_share) == (0.25, 0.25, 0.1)
    assert NetworkReport().fallback_share == NetworkReport().collided_share == NetworkReport().resend_share == 0
    (tmp_path / reports.FILE).write_text(json.dumps({"sent": "many"}))
    assert read_report(tmp_path) is None
    write_report(tmp_path / "gone", report)  # does not raise
