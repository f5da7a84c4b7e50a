"""Bundles that were changed and made whole again."""

import json
from pathlib import Path

from evalkit.bundle import ModelSpec, manifest_digest, model_digest
from evalkit.canonical import sha256_file


def reseal(bundle: Path, name: str) -> None:
    """Make a manifest that fits one changed file, as an honest export would."""
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    file = bundle / name
    content["files"][name] = {"sha256": sha256_file(file), "bytes": file.stat().st_size}
    content["tokenizer"]["sha256"] = content["files"]["tokenizer.json"]["sha256"]
    content["model_digest"] = model_digest(
        content["files"]["weights.safetensors"]["sha256"],
        content["tokenizer"]["sha256"],
        ModelSpec.model_validate(content["model"]),
    )
    content["manifest_sha256"] = manifest_digest(content)
    path.write_text(json.dumps(content))
