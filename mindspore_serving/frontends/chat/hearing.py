"""Models that transcribe speech, for the routes of recordings and of live speech."""

from mindspore_serving.core.llm_messages import Refused, RequestRefused
from mindspore_serving.core.speech_messages import Heard, Transcribed
from mindspore_serving.errors import InvalidField, ServingError
from mindspore_serving.frontends import access
from mindspore_serving.frontends.chat.models import Generation, LanguageModels, ServedModel


def find_transcriber(models: LanguageModels, name: str | None) -> ServedModel:
    """Return the model `name`.

    Raises NotFound, or InvalidField if it does not transcribe speech.
    """
    model = models.find(name, purpose="transcribe")
    if not model.can("transcribe"):
        raise InvalidField("model", text=f"model {model.name!r} does not transcribe speech")
    return model


async def next_heard(generation: Generation) -> Heard | Transcribed:
    """Return the next event of a `Transcribe`; `Transcribed` is the last.

    Raises RequestRefused, or another ServingError.
    """
    event = await generation.next()
    if isinstance(event, Refused):
        raise RequestRefused(event)
    if not isinstance(event, Heard | Transcribed):
        raise ServingError("the model returned no text")
    if isinstance(event, Transcribed):
        access.note_tokens(event.num_prompt_tokens, event.num_generated_tokens)
    return event
