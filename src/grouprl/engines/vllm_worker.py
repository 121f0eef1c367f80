"""What GroupRL adds to the workers of a vLLM server, which start with --worker-extension-cls (docs/scale.md).

It runs in vLLM's environment and imports nothing of GroupRL but the reader of published weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grouprl.engines.published import PublishedWeights, shape_of
from grouprl.types import UserError


class PublishedWeightsWorker:
    """Methods that vLLM calls on each of its workers by `/collective_rpc`.

    They return what went wrong instead of raising it: vLLM answers status 500 to an error, which means a fault of the
    server, and the client would repeat the call.
    """

    vllm_config: Any
    reload_weights: Any
    get_model: Any
    list_loras: Any
    _grouprl_label = ""  # of the newest weights loaded; a server that was started again has none

    def grouprl_describe(self) -> dict[str, Any]:
        """Describes the model of this worker and the settings that sampling for a learner depends on."""
        model = self.vllm_config.model_config
        return {
            "model": model.model,
            "shape": shape_of(model.hf_text_config),
            "logprobs_mode": str(model.logprobs_mode),
            "context": model.max_model_len,
            "rows": self.vllm_config.scheduler_config.max_num_seqs,
            "lora": self.vllm_config.lora_config is not None,
            "adapters": sorted(self.list_loras()) if self.vllm_config.lora_config is not None else [],
            "replicas": self.vllm_config.parallel_config.data_parallel_size,
            "label": self._grouprl_label,
        }

    def grouprl_load(self, folder: str, version: str, digest: str) -> dict[str, Any]:
        """Checks published weights and loads them; of an adapter, vLLM's own endpoint loads the files checked here."""
        weights = PublishedWeights(Path(folder), int(version), digest)
        try:
            weights.check()
            if not weights.is_adapter:
                self.reload_weights(weights_iterator=weights.tensors(), is_checkpoint_format=True)
                self._repack_head()
                held = dict(self.get_model().named_parameters())
                for name, tensor in weights.tensors():
                    # vLLM joins, cuts or packs other tensors; those that it holds as they are show what it loaded.
                    weight = held.get(name)
                    if weight is None or weight.shape != tensor.shape or not weight.is_floating_point():
                        continue
                    if not weight.data.equal(tensor.to(weight)):
                        return {"error": f"other values of {name} after vLLM had loaded {weights.label}"}
        except UserError as error:
            return {"error": str(error)}
        except Exception as error:  # noqa: BLE001  whatever vLLM raises for weights that are not those of its model
            return {"error": f"{type(error).__name__}: {error}"}
        self._grouprl_label = weights.label
        return {"label": weights.label}

    def _repack_head(self) -> None:
        """Packs an output embedding again that shares its weight with the input embedding.

        On a CPU it computes with a packed copy of the weight. vLLM 0.32 packs only what was loaded by its own name, so
        that the copy stayed that of the start: log-probs were wrong by 0.06 nats after one update, without an error.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.platforms import current_platform

        for module in self.get_model().modules() if current_platform.is_cpu() else ():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
