"""Check of the options that say where draft tokens come from.  Imports nothing heavy."""

from pathlib import Path
from typing import Any

from mindspore_serving.errors import InvalidInputs


def check_draft(
    draft: Any, num_speculative_tokens: int | None, num_ranks: int, *, has_head: bool
) -> None:
    """Raise InvalidInputs for a `draft` or a prediction head that another option excludes."""
    if draft is None and not has_head:
        return
    if draft is not None and not (isinstance(draft, str | Path) and str(draft)):
        raise InvalidInputs(f"draft is {draft!r}, expected a directory or a GGUF file")
    setting = "mtp is True" if has_head else f"draft is {str(draft)!r}"
    reasons = {
        "draft, which proposes tokens as well": has_head and draft is not None,
        "num_speculative_tokens=0, which allows no drafts": num_speculative_tokens == 0,
        "tensor_parallel or pipeline_parallel, whose ranks share one model": num_ranks > 1,
    }
    for reason, applies in reasons.items():
        if applies:
            raise InvalidInputs(f"{setting}, which excludes {reason}: leave out either")
