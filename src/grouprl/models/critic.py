"""PPO's critic predicts a value for each token from a copy of the policy or from the policy's own hidden states."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.models.products import padded_call


class Critic(nn.Module):
    """A linear value head on the hidden states of its own trunk, or of the policy's.

    The head starts at 0, so an untrained critic predicts 0 and adds no noise to the advantages.
    """

    def __init__(self, policy: PreTrainedModel, *, shared: bool) -> None:
        """Copies the policy's current decoder, without an output embedding, as the trunk unless `shared`."""
        super().__init__()
        embedding = policy.get_input_embeddings().weight
        # The frozen weights beside an adapter are shared with the policy: deepcopy skips what its memo holds.
        frozen = {id(weight): weight for weight in policy.parameters() if not weight.requires_grad}
        self.trunk: PreTrainedModel | None = None if shared else copy.deepcopy(policy.get_decoder(), frozen)
        dtype = torch.promote_types(embedding.dtype, torch.float32)  # a bfloat16 weight near 0.01 has steps of 1e-4
        self.head = nn.Linear(policy.config.get_text_config().hidden_size, 1, device=embedding.device, dtype=dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.eval()

    def values(self, hidden_CH: Tensor) -> Tensor:
        """[C] values, float32, from the hidden states [C, H] that predict the tokens."""
        # Rounded to bfloat16, a value near 64 is off by more than PPO's value clip.
        with torch.autocast(hidden_CH.device.type, enabled=False):
            return padded_call(self.head, hidden_CH.to(self.head.weight.dtype))[:, 0].float()
