"""Fields of a transcription request that a model does not support, and their limits."""

from mindspore_serving.core.speech_messages import Transcribe
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.speech.models import SpeechModel


def check_fields(request: Transcribe, model: SpeechModel, num_rows: int) -> None:
    """Raise InvalidField for a field that `model` cannot follow with room for `num_rows` texts."""
    family, languages = model.family, model.languages
    for name, value, usual in (
        ("temperature", request.temperature, 0),
        ("beam_size", request.beam_size, 1),
    ):
        if value != usual and not family.samples_texts:
            problem = f"is {value}, but this model has one text for a recording: leave it out"
            raise InvalidField(name, problem)
    if request.beam_size > num_rows:
        problem = f"is {request.beam_size}, expected at most {num_rows}: so many texts have room"
        raise InvalidField("beam_size", problem)
    if request.language and request.language not in languages:
        if not languages:
            problem = "is set, but this model does not take one: leave language out"
            raise InvalidField("language", problem)
        problem = f"is {request.language!r:.40}, expected one of {', '.join(languages)}"
        raise InvalidField("language", problem)
    if request.translates and not model.tokens.languages:
        single = "only knows English" if family.language == "en" else "only transcribes"
        raise InvalidField("model", text=f"this model {single}: it cannot translate")
    if request.prompt and not family.takes_prompts:
        raise InvalidField("prompt", "is set, but this model takes neither prompt nor hotwords")
    if request.has_times and not family.writes_times:
        problem = "needs timestamps, which this model does not produce: use json or text"
        raise InvalidField("response_format", problem)
