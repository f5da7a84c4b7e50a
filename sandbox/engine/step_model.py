"""The bundle's `step` graph in MindSpore: a few new tokens in, the next token's logits and their keys and values out.

MindSpore allows one thread at a time, so only the engine process's main thread comes here.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evalkit.bundle import Bundle, GraphSpec
from evalkit.errors import InputError
from sandbox.engine.kv_cache import Float32, KvShape

_FIXED_INPUTS = ("token_ids", "positions", "past_positions", "last_index")


class StepModel:
    """Runs the graph for one session at a time."""

    def __init__(self, bundle: Bundle) -> None:
        """Load and compile the graph of the role `decode`; it serves prefill too.

        Raises:
            InputError: the bundle has no such graph, or not one that this engine can call.
        """
        import mindspore
        from mindspore import Tensor, nn

        file = bundle.graph_file("decode")
        spec = bundle.manifest.graphs["decode"]
        shape = KvShape(bundle.model.layers, bundle.model.kv_heads, bundle.model.head_size)
        _check_ports(bundle, spec, shape)
        try:
            graph = mindspore.load(str(file))
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{file}: MindSpore can't load it ({error}); export the bundle again") from None
        self.shape = shape
        self._tensor = Tensor
        self._graph = nn.GraphCell(graph)
        dtypes = {"int32": mindspore.int32, "float32": mindspore.float32}
        # Without this, every new length would compile the graph again (about 100 ms each).
        self._graph.set_inputs(*(Tensor(shape=port.shape, dtype=dtypes[port.dtype]) for port in spec.inputs))

    def step(
        self, ids: Sequence[int], past_length: int, past: Sequence[Float32]
    ) -> tuple[npt.NDArray[np.float32], list[Float32]]:
        """Compute tokens that follow `past_length` earlier ones.

        Args:
            ids: the new tokens, at least one.
            past_length: P, how many tokens stand before them.
            past: their keys and values, as KvEntry.past gives them, each [1, kv_heads, at least P, head_size]; rows
                from P on are masked out.

        Returns:
            Logits after the last new token, float32 [vocabulary], and the new tokens' keys and values, each
            [1, kv_heads, len(ids), head_size].
        """
        end = past_length + len(ids)
        past_positions = np.full((1, past[0].shape[2]), -1, np.int32)
        past_positions[0, :past_length] = np.arange(past_length)
        arrays = [
            np.asarray([ids], np.int32),
            np.arange(past_length, end, dtype=np.int32)[None],
            past_positions,
            np.asarray([len(ids) - 1], np.int32),
            *past,
        ]
        logits, *new = self._graph(*(self._tensor(array) for array in arrays))
        return logits.asnumpy()[0], [rows.asnumpy() for rows in new]


def _check_ports(bundle: Bundle, spec: GraphSpec, shape: KvShape) -> None:
    if spec.format != "mindir":
        raise InputError(
            f"{bundle.path}: graphs.decode: format {spec.format} isn't served; export a MindIR graph"
        )
    cached = [f"past_{kind}_{layer}" for layer in range(shape.layers) for kind in ("key", "value")]
    found = [port.name for port in spec.inputs]
    if found != [*_FIXED_INPUTS, *cached]:
        raise InputError(
            f"{bundle.path}: graphs.decode: the inputs must be {', '.join(_FIXED_INPUTS)} and one past_key_N, past_value_N a"
            f" layer, found {', '.join(found) or 'none'}; export the bundle again"
        )
