"""Fields beside those of a format, by names with x_: of requests what `decide` takes, of answers what it tells."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool

from token_trie.decisions.questions.answered import Answered
from token_trie.decisions.questions.options import DecideOptions, FormName
from token_trie.decisions.think import Think
from token_trie.serve.body import Body
from token_trie.serve.engine import Engine

_MAX_ORDERS = 64


class Thought(BaseModel):
    """How the model thinks where its answer is close."""

    max_tokens: int = Field(256, ge=0, le=4096)
    margin: float = Field(0.5, ge=0, le=1)
    share: float = Field(0.2, ge=0, le=1)


class Extras(Body):
    """How questions are asked and answered; see `DecideOptions`."""

    x_form: FormName | None = None
    x_calibration: Literal["contextual"] | None = "contextual"
    x_orders: Annotated[int, Field(ge=1, le=_MAX_ORDERS)] | Literal["auto"] = 1
    x_instead: StrictBool = False
    x_think: Thought | None = None
    x_reproducible: StrictBool = False

    def options(self, engine: Engine) -> DecideOptions:
        """Return how it is to be answered; ArgumentError where that does not go together."""
        think = self.x_think
        return DecideOptions(
            form=self.x_form,
            calibration=self.x_calibration,
            orders=self.x_orders,
            instead=self.x_instead,
            think=None if think is None else Think(max_tokens=think.max_tokens, margin=think.margin, share=think.share),
            reproducible=self.x_reproducible or engine.is_reproducible,
        )


def extras(answer: Answered[Any]) -> dict[str, Any]:
    """Return what is told of an answer beside the format's fields."""
    more = {"x_instead": answer.instead, "x_thought": answer.thought, "x_other": getattr(answer, "other", None)}
    given = {name: value for name, value in more.items() if value is not None}
    return {"x_mass": answer.mass, "x_calibration": answer.calibration, **given}
