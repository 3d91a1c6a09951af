"""Cache namespaces as outsiders may see them: by a digest, never by the name.

A name stems from API keys and salts. Its digest is made under a key that is drawn once per process,
so that a guessed name cannot be confirmed.
"""

import hashlib
import heapq
import secrets

from mem_cache.tree.radix import ShadowRadixCache

_DIGEST_BYTES = 4
_DIGEST_KEY = secrets.token_bytes(16)


def digest(name: str) -> str:
    """Return what a namespace goes by outside: 8 hexadecimal digits."""
    data = name.encode()
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=_DIGEST_KEY).hexdigest()


def largest_namespaces(cache: ShadowRadixCache, count: int) -> dict[str, float]:
    """Return the tokens that the largest namespaces hold, by digest. Looks at each namespace."""
    tokens = cache.tokens_by_namespace()
    names = heapq.nlargest(count, tokens, key=tokens.__getitem__)
    return {digest(name): tokens[name] for name in names}
