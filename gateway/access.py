"""Who may ask: API keys and admin keys, known by their hashes."""

from gateway.errors import Forbidden, Unauthorized
from gateway.settings import AccessSettings, hash_key


class Access:
    """Checks credentials. Without any API key everyone may ask, which the settings allow on loopback only."""

    def __init__(self, settings: AccessSettings) -> None:
        self._api_keys = settings.api_keys | settings.admin_keys
        self._admin_keys = settings.admin_keys
        self._open = not settings.api_keys

    def check_api(self, credential: bytes | None) -> str:
        """Let a holder of an API or admin key pass, and tell one from another.

        Returns:
            The key's hash; "" for all, where everyone may ask.

        Raises:
            Unauthorized
        """
        if self._open:
            return ""
        # Looking up a hash leaks no more by its timing than the hash of what the caller sent.
        owner = hash_key(credential) if credential is not None else ""
        if owner not in self._api_keys:
            raise _unauthorized(credential)
        return owner

    def check_admin(self, credential: bytes | None) -> None:
        """Let a holder of an admin key pass; on an open gateway without admin keys, everyone.

        Raises:
            Unauthorized, Forbidden
        """
        if self._admin_keys:
            if _known(credential, self._admin_keys):
                return
            if not _known(credential, self._api_keys):
                raise _unauthorized(credential)
        elif self._open:
            return
        raise Forbidden(
            "This needs an admin key"
            + ("." if self._admin_keys else ", and the gateway has none: set access.admin_keys_file.")
        )


def _known(credential: bytes | None, hashes: frozenset[str]) -> bool:
    return credential is not None and hash_key(credential) in hashes


def _unauthorized(credential: bytes | None) -> Unauthorized:
    said = "Incorrect API key provided." if credential else "You didn't provide an API key."
    return Unauthorized(
        said + " Send one as `Authorization: Bearer KEY`.", headers=((b"www-authenticate", b"Bearer"),)
    )
