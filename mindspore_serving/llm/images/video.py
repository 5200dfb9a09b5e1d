"""Frames of video files, evenly by time.  Knows no request and no model.

Format, pixels, length and rate are checked before anything is decoded, and only packets that lead
to a target frame are.  The format is told by the first bytes and named to the decoder, because some
formats of text make a decoder open other files and addresses.
"""

import io
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.extras import command
from mindspore_serving.llm.images.decoding import ImageLimits, check_size

MAX_RATE = 240  # frames per second
MIN_SPACING = 0.5  # seconds between frames of a short video
EARLY = 0.25  # of the time between two frames
_FORMATS = (  # place and bytes, and the decoder's name
    (4, b"ftyp", "mp4"),
    (4, b"moov", "mov"),
    (4, b"mdat", "mov"),
    (4, b"wide", "mov"),
    (0, b"\x1aE\xdf\xa3", "matroska"),
    (8, b"AVI ", "avi"),
    (188, b"G", "mpegts"),
)
NAMES = "mp4, mov, webm, mkv, avi or ts"


class VideoLimits(ImageLimits, Protocol):
    """Limits of one video: those of an image for each frame, seconds, and frames that are read."""

    @property
    def max_video_seconds(self) -> float: ...

    @property
    def max_video_frames(self) -> int: ...


class VideoFile:
    """Video in a file, as a context manager.

    Args:
        file: the file.
        limits: of the video.
        deadline: by `time.monotonic`, after which decoding ends.

    Raises InvalidInputs, as its methods do, whose message follows the file's name: an unknown
    format, a broken or truncated file, too many pixels, seconds or frames per second, no video.
    """

    def __init__(self, file: bytes, limits: VideoLimits, deadline: float) -> None:
        self._name = _format_of(file)
        if not self._name:
            raise InvalidInputs(f"is no video of a known format, expected {NAMES}")
        try:
            import av
        except ModuleNotFoundError:
            text = f"is a video, which this server cannot decode; {command('media')}"
            raise InvalidInputs(text) from None
        av.logging.set_level(av.logging.PANIC)  # of files, which clients send
        self._errors = (av.error.FFmpegError, ValueError, IndexError)
        self._av, self._file, self._limits, self._deadline = av, file, limits, deadline
        self._container = self._open()
        try:
            self._stream = self._checked(self._container)
            self._codec: Any = self._stream.codec_context
            self._tolerance = 0.0
            self.seconds = self._measure()
        except self._errors as error:
            self._container.close()
            raise _broken(error) from None
        except BaseException:
            self._container.close()
            raise

    def __enter__(self) -> "VideoFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._container.close()

    @property
    def max_frames(self) -> int:
        """Number of frames that are read, or a few more."""
        return max(1, min(self._limits.max_video_frames, round(self.seconds / MIN_SPACING)))

    def frames(self) -> Iterator[tuple[float, Any]]:
        """Iterate over the times in seconds and the images of frames, evenly by time.

        A key frame that is a little early is taken in place of a frame whose predecessors would
        have to be decoded.
        """
        count = self.max_frames
        spacing = self.seconds / count
        targets = deque((index + 0.5) * spacing for index in range(count))
        self._tolerance = EARLY * spacing
        last = -1.0
        try:
            for frame in self._decode(targets):
                at = self._time(frame.pts)
                if at <= last:
                    continue  # the last frame stands for the rest
                last = at
                yield at, _to_image(frame)
        except self._errors as error:
            raise _broken(error) from None
        if last < 0:
            raise InvalidInputs("is broken or truncated: it has no frame")

    def _open(self) -> Any:
        options = {"max_pixels": str(self._limits.max_image_pixels)}
        try:
            return self._av.open(
                io.BytesIO(self._file),
                format=self._name,
                metadata_errors="replace",
                options=options,
            )
        except self._errors as error:
            raise _broken(error) from None

    def _checked(self, container: Any) -> Any:
        """Return the first stream of video."""
        if not container.streams.video:
            raise InvalidInputs("has no video, only other streams")
        stream = container.streams.video[0]
        stream.thread_type, stream.codec_context.thread_count = "NONE", 1
        check_size(stream.codec_context.width, stream.codec_context.height, self._limits)
        rate = stream.average_rate
        if rate is not None and rate > MAX_RATE:
            raise InvalidInputs(
                f"has {float(rate):,.0f} frames per second, expected at most {MAX_RATE}"
            )
        if stream.frames > MAX_RATE * self._limits.max_video_seconds:
            raise InvalidInputs(f"has {stream.frames:,} frames, more than it can have in its time")
        return stream

    def _measure(self) -> float:
        """Return the length in seconds: the header's, or else by the times of all packets."""
        stream, container = self._stream, self._container
        seconds = 0.0
        if stream.duration is not None and stream.time_base is not None:
            seconds = float(stream.duration * stream.time_base)
        elif container.duration is not None:
            seconds = container.duration / self._av.time_base
        self._check_seconds(seconds)
        if seconds > 0:
            return seconds
        with self._open() as copy:
            copied = self._checked(copy)
            for packet in copy.demux(copied):
                self._check_time()
                seconds = max(seconds, self._time(packet.pts) + self._time(packet.duration, 0))
                self._check_seconds(seconds)
        return seconds

    def _decode(self, targets: deque[float]) -> Iterator[Any]:
        """Iterate over the first frame at or after each time; decodes in one pass.

        Packets from a key frame on are kept until it is known whether a frame before the next one
        is a target.
        """
        kept: list[Any] = []
        count, end = 0, 0.0
        for packet in self._container.demux(self._stream):
            self._check_time()
            is_end = packet.dts is None and not packet.size
            if not is_end:
                count += 1
                end = max(end, self._time(packet.pts) + self._time(packet.duration, 0))
            else:
                self._check_end(count, end)
            if (packet.is_keyframe or is_end) and kept:
                until = float("inf") if is_end else self._time(packet.pts)
                yield from self._decode_run(kept, targets, until)
                kept = []
            if not targets:
                return
            if not is_end:
                kept.append(packet)

    def _check_end(self, count: int, end: float) -> None:
        """Check the number of packets, and where they end, with what the header says."""
        missing = self._stream.frames - count
        if missing > 0:
            raise InvalidInputs(
                f"is truncated: {missing:,} of its {self._stream.frames:,} frames are missing"
            )
        if end < self.seconds / 2:
            raise InvalidInputs(
                f"is truncated: its frames end at {end:.1f} of {self.seconds:.1f} seconds"
            )

    def _decode_run(self, packets: list[Any], targets: deque[float], until: float) -> Iterator[Any]:
        """Iterate over the target frames before `until` in packets from a key frame on."""
        codec, last = self._codec, None
        for packet in (*packets, None):
            if not targets or targets[0] >= until:
                break
            self._check_time()
            for frame in codec.decode(packet):
                check_size(frame.width, frame.height, self._limits)
                reach = self._time(frame.pts) + (self._tolerance if last is None else 0.0)
                last = frame
                if targets and targets[0] <= reach:
                    yield frame
                    _drop(targets, reach)
        if last is not None and targets and targets[0] < until:
            yield last
            _drop(targets, until)
        codec.flush_buffers()

    def _time(self, ticks: int | None, start: int | None = None) -> float:
        start = self._stream.start_time if start is None else start
        return float(((ticks or 0) - (start or 0)) * self._stream.time_base)

    def _check_seconds(self, seconds: float) -> None:
        limit = self._limits.max_video_seconds
        if seconds > limit:
            raise InvalidInputs(
                f"is of more than {limit:g} seconds, the most that this server takes "
                "(max_video_seconds): cut it"
            )

    def _check_time(self) -> None:
        check_deadline(self._deadline)


def check_deadline(deadline: float) -> None:
    """Raise InvalidInputs after `deadline`."""
    if time.monotonic() > deadline:
        raise InvalidInputs("takes longer to decode than preparation_timeout allows: send less")


def _drop(times: deque[float], until: float) -> None:
    while times and times[0] <= until:
        times.popleft()


def _broken(error: Exception) -> InvalidInputs:
    problem = getattr(error, "strerror", None) or str(error)
    return InvalidInputs(f"is broken or truncated: {problem[:200]}")


def _format_of(file: bytes) -> str:
    return next((name for at, magic, name in _FORMATS if file[at:].startswith(magic)), "")


def _to_image(frame: Any) -> Any:
    """Return a frame as RGB, upright as a phone has recorded it."""
    image = frame.to_image()
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image
