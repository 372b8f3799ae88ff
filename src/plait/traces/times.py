"""Time stamps of the sources, as seconds since 1970 UTC.

Stamps without a zone are read in the zone their source was written in. US Pacific is computed from its rule
(since
2007: second Sunday of March to first Sunday of November), so that no time zone database is needed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from plait.core.errors import InputError

CHINA = timezone(timedelta(hours=8))


def stamp_s(text: str, zone: tzinfo | None = None, not_before_s: float = float("-inf")) -> float:
    """Seconds since 1970 of an ISO stamp; one without a zone is taken in `zone`. ValueError if it is neither.

    In an hour that occurs twice the first is meant, unless that lies before `not_before_s`.

    >>> stamp_s("2023-04-01 08:00:00+08:00") == stamp_s("2023-04-01 00:00:00", UTC)
    True
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        if zone is None:
            raise ValueError("the stamp has no time zone")
        moment = moment.replace(tzinfo=zone)
    at_s = moment.timestamp()
    return at_s if at_s >= not_before_s else max(at_s, moment.replace(fold=1).timestamp())


def zone_named(name: str) -> tzinfo:
    """The time zone of a name such as `Europe/Berlin`, or of an offset such as `+08:00`; raises `InputError`."""
    try:
        if name[:1] in "+-" and name:
            return datetime.fromisoformat(f"2000-01-01T00:00:00{name}").tzinfo or UTC
        return UTC if name.upper() in ("UTC", "Z") else ZoneInfo(name)
    except (ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise InputError(f"time zone {name!r}: {error}; use a name such as Europe/Berlin, or +08:00") from None
    except KeyError:
        raise InputError(f"time zone {name!r} is unknown; use a name such as Europe/Berlin, or +08:00") from None


def pacific_s(text: str, not_before_s: float = float("-inf")) -> float:
    """Seconds since 1970 of a local US Pacific stamp.

    In the hour that occurs twice in November the first is meant, unless that lies before `not_before_s`.

    >>> pacific_s("2017-11-05 01:30:00", pacific_s("2017-11-05 01:40:00")) - pacific_s("2017-11-05 01:30:00")
    3600.0
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        return moment.timestamp()
    local_s = moment.replace(tzinfo=UTC).timestamp()
    spring = _sunday(moment.year, 3, 2).replace(hour=3)
    autumn = _sunday(moment.year, 11, 1).replace(hour=2)
    if not spring <= moment < autumn:
        return local_s + 8 * 3600
    first = local_s + 7 * 3600
    twice = moment >= autumn - timedelta(hours=1)
    return first + 3600 if twice and first < not_before_s else first


def _sunday(year: int, month: int, nth: int) -> datetime:
    """Midnight of the nth Sunday of a month."""
    first = datetime(year, month, 1)
    return first + timedelta(days=(6 - first.weekday()) % 7 + 7 * (nth - 1))


def utc_text(seconds: float) -> str:
    """The ISO stamp of seconds since 1970, for the sidecar.

    >>> utc_text(0)
    '1970-01-01T00:00:00+00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat()
