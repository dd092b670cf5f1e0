"""From a request to a replica: who serves the model, what is known of the prompt, and the policy's choice."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.errors import ResponseNotFound
from gateway.fleet import Fleet, Replica
from gateway.knowledge import Knowledge
from gateway.routing import Decision, Matches, Policy, Prompt, RequestContext, decide
from gateway.stored import StoredResponses

RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request.

    Attributes:
        size: of its body in bytes.
    """

    request_id: str
    path: str
    model: str
    body: Mapping[str, Any]
    size: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A request with all that its routing depends on; it may be decided again without one of the replicas."""

    context: RequestContext
    replicas: list[Replica]
    matches: Matches


class Dispatcher:
    """Finds a replica for each request."""

    def __init__(self, fleet: Fleet, knowledge: Knowledge, policy: Policy) -> None:
        self._fleet = fleet
        self._knowledge = knowledge
        self._policy = policy
        self.stored = StoredResponses()

    async def look_up(self, request: Request) -> Dispatch:
        """Find out who serves the model and who holds how much of the prompt.

        Raises:
            ModelNotFound, Overloaded
        """
        model = request.model
        replicas = self._keepers(request, self._fleet.serving(model))
        prompt = await self._knowledge.prompt(request.path, model, request.body, request.size, replicas[0])
        context = RequestContext(request.request_id, request.path, model, request.body, prompt)
        matches = self._knowledge.matches(prompt, model, replicas[0])
        return Dispatch(context, _roomy(replicas, context), matches)

    async def common(self, request: Request, *others: Request) -> Dispatch:
        """As `look_up`, of the beginning that the prompts of all these requests have in common.

        Raises as `look_up`.
        """
        first = await self.look_up(request)
        if not others:
            return first
        prompt = first.context.prompt
        for other in others:
            prompt = prompt.common((await self.look_up(other)).context.prompt)
        context = replace(first.context, prompt=prompt)
        return replace(
            first, context=context, matches=self._knowledge.matches(prompt, request.model, first.replicas[0])
        )

    def keeper(self, response: str) -> Dispatch:
        """The replica that keeps a stored response.

        Raises:
            ResponseNotFound
        """
        name = self.stored.replica(response)
        replica = self._fleet.get(name) if name is not None else None
        if replica is None or not replica.up:
            raise ResponseNotFound(response)
        context = RequestContext("", RESPONSES, "", {}, Prompt(1))
        return Dispatch(context, [replica], {})

    def _keepers(self, request: Request, replicas: list[Replica]) -> list[Replica]:
        """Only the replica that keeps the response which this request goes on from."""
        previous = request.body.get("previous_response_id") if request.path == RESPONSES else None
        name = self.stored.replica(previous) if isinstance(previous, str) else None
        return [replica for replica in replicas if replica.name == name] or replicas

    def decide(self, dispatch: Dispatch, replicas: list[Replica] | None = None) -> Decision:
        """Apply the policy to all of the dispatch's replicas, or to some of them. Nothing changes by it."""
        return decide(self._policy, dispatch.context, replicas or dispatch.replicas, dispatch.matches)

    def commit(self, dispatch: Dispatch, replica: Replica) -> None:
        """The request goes there: its siblings shall know before the engine's events tell, and the next has
        another turn."""
        self._policy.chosen()
        self._knowledge.predict(dispatch.context.prompt, dispatch.context.model, replica)

    def absent(self, context: RequestContext, replica: Replica, at: int) -> None:
        """The page after `at` tokens was thought to be on the replica's shared storage, and isn't."""
        self._knowledge.absent(context.prompt, context.model, replica, at)


def _roomy(replicas: list[Replica], context: RequestContext) -> list[Replica]:
    """Those whose context holds the prompt; all, if none does: then one of them shall say so."""
    if context.prompt.keys is None:
        return replicas
    # One may have unloaded the model while the prompt was tokenized.
    cards = ((replica, replica.models.get(context.model)) for replica in replicas)
    lengths = ((replica, card.max_model_len) for replica, card in cards if card is not None)
    fitting = [replica for replica, most in lengths if most is None or most > context.prompt.tokens]
    return fitting or replicas
