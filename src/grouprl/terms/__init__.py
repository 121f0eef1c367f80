"""A leaf: further terms of the loss, one file each: PPO's critic, distillation, the balance of a router."""
