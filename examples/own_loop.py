"""An objective in a loop of one's own: a softmax policy over four answers, of which the first is right."""

import torch

import tepo
from tepo.objectives import Groups, TokenBatch

objective = tepo.load_objective("tepo", {"beta": 0.01})
generator = torch.Generator().manual_seed(0)
logits = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.Adam([logits], lr=0.1)
lengths, one_group, uid = torch.ones(16, dtype=torch.int64), torch.zeros(16, dtype=torch.int64), torch.arange(16)

for _ in range(20):
    old = torch.log_softmax(logits, 0).detach()
    entropy = -(old.exp() * old).sum().expand(16)
    answers = torch.multinomial(old.exp(), 16, replacement=True, generator=generator)  # one token a response
    advantages = objective.advantages(Groups((answers == 0).float(), one_group, lengths, entropy))
    for _ in range(4):
        new = torch.log_softmax(logits, 0)
        now = -(new.exp() * new).sum().expand(16)
        batch = TokenBatch(old[answers], advantages, lengths, new[answers], now, entropy, uid=uid)
        out = objective.loss(batch, objective.prepare(batch))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()

print(f"probability of the right answer: {torch.softmax(logits, 0)[0]:.2f}")
