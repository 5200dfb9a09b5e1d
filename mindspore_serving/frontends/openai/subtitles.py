"""Texts with times in the formats of subtitles: SubRip and WebVTT.  Knows no request."""

from collections.abc import Sequence

from mindspore_serving.core.speech_messages import SpokenSegment


def to_srt(segments: Sequence[SpokenSegment]) -> str:
    """Return segments in SubRip's format."""
    return "\n".join(
        f"{number}\n{_time(row.start, ',')} --> {_time(row.end, ',')}\n{_text(row)}\n"
        for number, row in enumerate(segments, 1)
    )


def to_vtt(segments: Sequence[SpokenSegment]) -> str:
    """Return segments in WebVTT's format."""
    cues = (f"{_time(row.start)} --> {_time(row.end)}\n{_text(row)}\n" for row in segments)
    return "\n".join(["WEBVTT\n", *cues])


def _text(segment: SpokenSegment) -> str:
    return segment.text.strip().replace("-->", "->")  # which would be read as times


def _time(seconds: float, point: str = ".") -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"
