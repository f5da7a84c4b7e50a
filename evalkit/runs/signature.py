"""An Ed25519 signature of the seal: who holds the private key vouches for the run (extra `sign`).

Keys are PEM files, e.g. of `openssl genpkey -algorithm ed25519`. What is signed is the canonical JSON of seal.json without
`signature` and `seal_sha256`: the digests of plan, evidence, results and comparison, from which `evalkit verify` computes
every verdict again. Ed25519: RFC 8032.
"""

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.canonical import canonical_json, sha256_bytes
from evalkit.errors import InputError
from evalkit.runs.folder import RunFolder
from evalkit.runs.seal import read_seal_content, store_seal
from evalkit.runs.verify import FileDifference, verify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALGORITHM = "ed25519"
_SEAL = "seal.json"


def sign_run(folder: RunFolder, key_file: Path) -> str:
    """Sign the seal of a run that verifies; an earlier signature is replaced.

    Args:
        folder: the run.
        key_file: the private key, PEM.

    Returns:
        The fingerprint of the key: SHA-256 of the 32 bytes of its public half.

    Raises:
        InputError: the key can't be used, or the run differs from what was sealed, measured or judged.
    """
    key = _private_key(key_file)
    differences = verify(folder)
    if differences:
        raise InputError(
            f"{folder.path}: differs, so it isn't signed: {differences[0]}; see `evalkit verify`"
        )
    content = _signed_part(read_seal_content(folder.path))
    public = key.public_key().public_bytes_raw()
    signature = {
        "algorithm": ALGORITHM,
        "public_key": base64.b64encode(public).decode(),
        "value": base64.b64encode(key.sign(canonical_json(content))).decode(),
    }
    store_seal(folder.path, {**content, "signature": signature})
    return sha256_bytes(public)


def signature_difference(folder: RunFolder, key_file: Path) -> FileDifference | None:
    """What speaks against the run being signed with a key: unsigned, signed with another, changed; None if nothing.

    Args:
        folder: the run.
        key_file: the public key, PEM.

    Raises:
        InputError: the key can't be used.
    """
    key = _public_key(key_file)
    try:
        content = read_seal_content(folder.path)
    except InputError as error:
        return FileDifference(_SEAL, f"the signature can't be checked: {error}")
    signature = content.get("signature")
    if signature is None:
        return FileDifference(_SEAL, "unsigned: it carries no signature")
    value = _value_of(signature)
    if value is None:
        return FileDifference(_SEAL, f"its signature isn't one of {ALGORITHM}")
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(value, canonical_json(_signed_part(content)))
    except InvalidSignature:
        # Nothing but words depends on the key that the seal names; the one that was given decides.
        named, given = signer(folder), sha256_bytes(key.public_bytes_raw())
        if named != given:
            return FileDifference(
                _SEAL,
                f"signed with another key: {_short(named)}, the one to check against is {_short(given)}",
            )
        return FileDifference(_SEAL, "changed: the signature doesn't fit what it stands for")
    return None


def verify_signed(folder: RunFolder, key_file: Path) -> list[FileDifference]:
    """What `verify` finds, and what speaks against the signature; see `signature_difference`.

    Raises:
        InputError: no such run, or the key can't be used.
    """
    _public_key(key_file)  # looked at before the long part
    differences = verify(folder)
    unsigned = signature_difference(folder, key_file)
    if unsigned is None or any(item.path == _SEAL for item in differences):
        return differences
    return sorted([*differences, unsigned], key=lambda item: item.path)


def signed_state(folder: RunFolder, key_file: Path | None, differences: list[FileDifference]) -> str | None:
    """The signature in words, None for an unsigned run; `differences` are those that were found with the same key."""
    if any(item.path == _SEAL for item in differences):
        return None if key_file is None else "not valid"
    found = signer(folder)
    if key_file is not None:
        return f"valid, by key {_short(found)}"
    return None if found is None else f"by key {_short(found)}, not checked (name the public key with --key)"


def signer(folder: RunFolder) -> str | None:
    """The fingerprint of the key that the seal claims to be signed with; None for an unsigned run.

    Raises:
        InputError: no seal, or one that doesn't fit itself.
    """
    signature = read_seal_content(folder.path).get("signature")
    if not isinstance(signature, dict):
        return None
    try:
        return sha256_bytes(base64.b64decode(str(signature.get("public_key")), validate=True))
    except binascii.Error:
        return None


def _signed_part(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in ("signature", "seal_sha256")}


def _value_of(signature: Any) -> bytes | None:
    if not isinstance(signature, dict) or signature.get("algorithm") != ALGORITHM:
        return None
    try:
        return base64.b64decode(str(signature.get("value")), validate=True)
    except binascii.Error:
        return None


def _short(fingerprint: str | None) -> str:
    return "unknown" if fingerprint is None else fingerprint[:12]


def _private_key(path: Path) -> "Ed25519PrivateKey":
    data = _read(path)
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise _not_installed() from None
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError:
        raise InputError(
            f"{path}: the private key is encrypted; give one without a passphrase, readable by its owner alone"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(
            f"{path}: not a private key in PEM; make one with `openssl genpkey -algorithm ed25519 -out NEW.pem`"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            f"{path}: a key of another kind; an Ed25519 key is needed: `openssl genpkey -algorithm ed25519`"
        )
    return key


def _public_key(path: Path) -> "Ed25519PublicKey":
    data = _read(path)
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise _not_installed() from None
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(
            f"{path}: not a public key in PEM; make it from the private one with `openssl pkey -in KEY.pem -pubout`"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{path}: a key of another kind; the public half of an Ed25519 key is needed")
    return key


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name the key's PEM file in it")
    if not path.is_file():
        raise InputError(f"{path}: no such key file; check the path")
    return path.read_bytes()


def _not_installed() -> InputError:
    return InputError('signatures need the package cryptography; pip install "evalkit[sign]"')
