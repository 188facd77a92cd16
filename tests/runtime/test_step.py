"""A step in a user's hands: ownership, order of calls, state, and what every misuse says."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn

from rudagraph.errors import ContractError, UsageError
from tests.runtime import support
from tests.runtime.support import assert_same, gradients, plain_step


@pytest.fixture(params=["plain", pytest.param("kernels", marks=pytest.mark.full)], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test here runs without generated kernels, and under --full with them."""
    monkeypatch.setattr(support, "with_kernels", request.param == "kernels")
    return str(request.param)


def make(*, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 5), nn.Dropout(dropout), nn.Tanh(), nn.Linear(5, 3), nn.Tanh()
    )


def batch(seed: int, rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed))


class Two(nn.Module):
    """Two outputs: `side` has parameters of its own, `main` and `side` share `base`."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.side = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = torch.sin(self.base(x))
        return {"main": h * h, "side": torch.tanh(self.side(h)), "flag": x > 0}


# ---- what is returned belongs to the caller


def test_results_and_gradients_held_by_the_caller_never_change() -> None:
    model = make()
    step = plain_step(model, batch(0))
    first = step(batch(1))
    first.sum().backward()
    held = [first.detach(), *[p.grad for p in model.parameters()]]
    copies = [tensor.clone() for tensor in held if tensor is not None]
    model.zero_grad(set_to_none=True)
    step(batch(2)).sum().backward()
    assert_same(held, copies)


def test_gradients_add_up_and_can_be_zeroed_in_place() -> None:
    model = make()
    twin = copy.deepcopy(model)
    step = plain_step(model, batch(0))
    for seed in (1, 2, 3):
        step(batch(seed)).mean().backward()
        twin(batch(seed)).mean().backward()
        if seed == 2:
            for p in (*model.parameters(), *twin.parameters()):
                assert p.grad is not None
                p.grad.zero_()
    assert_same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def test_the_runtime_keeps_no_reference_to_what_it_returned() -> None:
    model = Two()
    step = plain_step(model, batch(0))
    out = step(batch(1))
    references = [weakref.ref(tensor) for tensor in out.values()]
    (out["main"].sum() + out["side"].sum()).backward()
    references += [weakref.ref(p.grad) for p in model.parameters()]
    del out
    model.zero_grad(set_to_none=True)
    assert [reference() for reference in references] == [None] * len(references)


def test_gradients_share_no_memory() -> None:
    class Sum(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    a, b = (batch(i).requires_grad_() for i in (1, 2))
    step = plain_step(Sum(), a, b)
    tangent = torch.ones(8, 6)
    step(a, b).backward(tangent)
    assert a.grad is not None and b.grad is not None
    a.grad.mul_(5)
    assert torch.equal(b.grad, torch.ones(8, 6)) and torch.equal(tangent, torch.ones(8, 6))


def test_an_output_may_be_changed_in_place_where_eager_allows_it() -> None:
    model = nn.Linear(6, 5)
    step = plain_step(model, batch(0))
    want = gradients(model, lambda: model(batch(1)).mul_(2).sum())
    assert_same(gradients(model, lambda: step(batch(1)).mul_(2).sum()), want)


# ---- forward, backward, and in which order


def test_a_second_forward_before_backward_names_in_flight() -> None:
    model = make()
    step = plain_step(model, batch(0))
    first = step(batch(1))
    with pytest.raises(UsageError, match=r"StaticGraph\(model, in_flight=2\)"):
        step(batch(2))
    want = gradients(model, lambda: model(batch(1)).sum())
    assert_same(gradients(model, lambda: first.sum()), want)
    step(batch(2)).sum().backward()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_forwards_in_flight(order: tuple[int, int]) -> None:
    model = make()
    step = plain_step(model, batch(0), options={"in_flight": 2})
    outs = [step(batch(1)), step(batch(2))]
    with pytest.raises(UsageError, match="in_flight=3"):
        step(batch(3))
    for index in order:
        want = gradients(model, lambda index=index: model(batch(1 + index)).sum())
        assert_same(gradients(model, lambda index=index: outs[index].sum()), want)


def test_an_abandoned_forward_does_not_lock_the_step() -> None:
    step = plain_step(make(), batch(0))
    for seed in range(3):
        step(batch(seed))
    cycle: list[Any] = [step(batch(4))]
    cycle.append(cycle)
    del cycle
    step(batch(5)).sum().backward()


def test_evaluation_between_forward_and_backward_disturbs_nothing() -> None:
    model = make()
    step = plain_step(model, batch(0))
    out = step(batch(1))
    with torch.no_grad():
        torch.testing.assert_close(step(batch(2)), model(batch(2)))
    want = gradients(model, lambda: model(batch(1)).sum())
    assert_same(gradients(model, lambda: out.sum()), want)


def test_no_grad_and_inference_mode_give_plain_tensors() -> None:
    model = make()
    step = plain_step(model, batch(0))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = step(batch(1) + 1)
        assert not out.requires_grad and not out.is_inference()
    step(batch(1)).sum().backward()  # what ran under inference mode has tainted nothing


def test_retained_graph_can_run_backward_again() -> None:
    model = make()
    step = plain_step(model, batch(0))
    out = step(batch(1)).sum()
    want = gradients(model, lambda: model(batch(1)).sum())
    model.zero_grad(set_to_none=True)
    out.backward(retain_graph=True)
    out.backward()
    assert_same([p.grad for p in model.parameters()], [2 * w for w in want if w is not None])


def test_a_second_backward_without_retain_is_an_error() -> None:
    step = plain_step(make(), batch(0))
    out = step(batch(1)).sum()
    out.backward()
    with pytest.raises(UsageError, match=r"second time"):
        out.backward()
    other = step(batch(2))
    other.backward(torch.ones_like(other))
    with pytest.raises(UsageError, match=r"second time"):
        other.backward(torch.ones_like(other))


def test_a_backward_for_each_output_is_an_error_that_speaks_of_outputs() -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(6, 2), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tanh(self.left(x)), torch.tanh(self.right(x))

    left, right = plain_step(Apart(), batch(0))(batch(1))
    left.sum().backward()
    with pytest.raises(UsageError, match=r"one for all its outputs(.|\n)*sum of the losses"):
        right.sum().backward()


def test_a_retained_graph_that_was_overwritten_is_an_error() -> None:
    step = plain_step(make(), batch(0))
    out = step(batch(1))
    out.sum().backward(retain_graph=True)
    step(batch(2)).sum().backward()
    with pytest.raises(UsageError, match=r"overwritten the residuals.*\n.*\n.*in_flight=2"):
        out.sum().backward()


@pytest.mark.filterwarnings(r"ignore:Using backward\(\) with create_graph")
def test_second_order_is_refused_by_name() -> None:
    step = plain_step(make(), batch(0))
    with pytest.raises(UsageError, match=r"create_graph=True .*\n.*\n.*step\.model"):
        step(batch(1)).sum().backward(create_graph=True)
    step(batch(1)).sum().backward()


@pytest.mark.parametrize("used", ["main", "side"])
def test_backward_through_one_of_several_outputs(used: str) -> None:
    model = Two()
    step = plain_step(model, batch(0))
    want = gradients(model, lambda: model(batch(1))[used].sum())
    assert_same(gradients(model, lambda: step(batch(1))[used].sum()), want)
    assert (model.side.weight.grad is None) == (used == "main")


def test_views_of_outputs_and_upstream_gradients_of_any_layout() -> None:
    model = make()
    step = plain_step(model, batch(0))
    layouts = (
        torch.randn(3, 8).t(),
        torch.ones(()).expand(8, 3),
        torch.randn(8, 6)[:, ::2],
        torch.randn(12, 5)[2:10, 1:4],
    )
    for tangent in layouts:
        before = tangent.clone()
        want = gradients(model, lambda t=tangent: (model(batch(1)) * t).sum())
        model.zero_grad(set_to_none=True)
        step(batch(1)).backward(tangent)
        assert_same([p.grad for p in model.parameters()], want)
        assert torch.equal(tangent, before)
    want = gradients(model, lambda: model(batch(1))[2:, 0].sum())
    assert_same(gradients(model, lambda: step(batch(1))[2:, 0].sum()), want)


def test_outputs_have_eagers_flags() -> None:
    out = plain_step(Two(), batch(0))(batch(1))
    assert out["main"].requires_grad and not out["flag"].requires_grad


def test_autograd_grad_hooks_and_scaling_see_each_gradient() -> None:
    model = make()
    step = plain_step(model, batch(0))
    want = gradients(model, lambda: model(batch(1)).sum())
    parameters = list(model.parameters())
    got = torch.autograd.grad(step(batch(1)).sum(), parameters)
    assert_same(got, want)
    assert_same(torch.autograd.grad(step(batch(1)).sum(), parameters[2:3]), want[2:3])
    seen: list[str] = []
    parameters[0].register_hook(lambda g: g * 3)
    parameters[1].register_post_accumulate_grad_hook(lambda p: seen.append("after"))
    scaled = gradients(model, lambda: step(batch(1)).sum() * 1024)
    assert want[0] is not None and want[1] is not None
    assert_same(scaled[:2], [want[0] * 3072, want[1] * 1024])
    assert seen == ["after"]


def test_arguments_that_require_grad_get_it() -> None:
    model = make()
    x = batch(1).requires_grad_()
    step = plain_step(model, x)
    y = (x * 2)[:, torch.arange(5, -1, -1)]
    for given in (x, y):
        step(given).sum().backward()
    got = x.grad
    x.grad = None
    model(x).sum().backward()
    model((x * 2)[:, torch.arange(5, -1, -1)]).sum().backward()
    assert_same([got], [x.grad])


def test_tensors_that_are_more_than_strides_are_read_right_or_refused() -> None:
    model = make()
    step = plain_step(model, batch(0))
    negative = torch.view_as_complex(torch.stack([batch(1), batch(2)], -1)).conj().imag
    assert negative.is_neg()
    torch.testing.assert_close(step(negative).detach(), model(negative))
    with pytest.raises(ContractError, match="input has layout sparse_coo"):
        step(batch(1).to_sparse())
    parameter = nn.Parameter(batch(1), requires_grad=False)
    torch.testing.assert_close(step(parameter).detach(), model(batch(1)))


def test_one_tensor_in_two_arguments_gets_both_gradients() -> None:
    class Product(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a * torch.sin(b)

    x, y = batch(1).requires_grad_(), batch(2).requires_grad_()
    step = plain_step(Product(), x, x)
    step(x, x).sum().backward()
    torch.testing.assert_close(x.grad, torch.sin(x) + x * torch.cos(x))
    x.grad = None
    step(x, y).sum().backward()
    torch.testing.assert_close(x.grad, torch.sin(y))


# ---- changes between forward and backward


def test_a_parameter_changed_before_backward_is_an_error_with_its_name() -> None:
    model = make()
    step = plain_step(model, batch(0))
    out = step(batch(1)).sum()
    with torch.no_grad():
        model[3].weight.mul_(2)
    with pytest.raises(UsageError, match=r"inplace operation: parameter:3.weight changed"):
        out.backward()
    step(batch(1)).sum().backward()


def test_a_parameter_given_other_memory_before_backward_keeps_eagers_gradient() -> None:
    model = make()
    step = plain_step(model, batch(0))
    want = gradients(model, lambda: model(batch(1)).sum())
    out = step(batch(1)).sum()
    model[3].weight.data = torch.zeros(3, 5)
    assert_same(gradients(model, lambda: out), want)
    torch.testing.assert_close(step(batch(2)), model(batch(2)))


def test_an_argument_or_output_changed_before_backward_is_an_error() -> None:
    model = make()
    step = plain_step(model, batch(0))
    for change in ("argument", "output"):
        x = batch(1)
        out = step(x)
        loss = out.sum()
        with torch.no_grad():
            (x if change == "argument" else out).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        del out, loss


def test_saved_tensor_hooks_may_move_what_is_kept() -> None:
    model = make()
    step = plain_step(model, batch(0))
    want = gradients(model, lambda: model(batch(1)).sum())
    packed = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.shape)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step(batch(1)).sum()
    assert_same(gradients(model, lambda: loss), want)
    assert torch.Size([8, 6]) in packed and torch.Size([8, 3]) in packed


# ---- signatures


def test_a_smaller_last_batch_and_eval_mode_are_added() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    step = plain_step(model, batch(0))
    with pytest.raises(ContractError, match=r"\(5, 6\).*\(8, 6\)(.|\n)*step\.add"):
        step(batch(1, rows=5))
    step.add(batch(1, rows=5))
    step(batch(1, rows=5)).sum().backward()
    model.eval()
    with pytest.raises(ContractError, match="model is in eval mode"):
        step(batch(1))
    with torch.no_grad():
        step.add(batch(1))
        torch.testing.assert_close(step(batch(2)), model(batch(2)))
    with pytest.raises(ContractError, match="has no backward"):
        step(batch(2))
    model.train()
    step(batch(3)).sum().backward()
    assert len(step.signatures) == 3
    assert [line.split(") ")[1] for line in step.signatures] == [
        "train, forward and backward",
        "train, forward and backward",
        "eval, forward only",
    ]


def test_adding_what_is_there_compiles_nothing() -> None:
    step = plain_step(make(), batch(0))
    step.add(batch(5)).add(batch(6))
    assert len(step.signatures) == 1


def test_residuals_of_one_signature_survive_a_call_of_another() -> None:
    model = make()
    step = plain_step(model, batch(0), options={"in_flight": 2}).add(batch(0, rows=64))
    outs = [step(batch(1)), step(batch(2, rows=64))]
    for out, given in zip(outs, (batch(1), batch(2, rows=64)), strict=True):
        want = gradients(model, lambda given=given: model(given).sum())
        assert_same(gradients(model, lambda out=out: out.sum()), want)


# ---- the model stays the user's


def test_loaded_moved_and_copied_models() -> None:
    model = make()
    keys = list(model.state_dict())
    step = plain_step(model, batch(0))
    assert list(model.state_dict()) == keys
    assert step.model is model
    pickle.loads(pickle.dumps(model))
    other = {name: value + 1 for name, value in make().state_dict().items()}
    for assign in (False, True):
        model.load_state_dict({k: v + assign for k, v in other.items()}, assign=assign)
        want = gradients(model, lambda: model(batch(1)).sum())
        assert_same(gradients(model, lambda: step(batch(1)).sum()), want)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.zero_()
    torch.testing.assert_close(step(batch(1)), model(batch(1)))
    torch.testing.assert_close(plain_step(twin, batch(0))(batch(1)), twin(batch(1)))
    model.double()
    with pytest.raises(ContractError, match=r"parameter 0\.weight is f64"):
        step(batch(1))
    model.float()
    torch.testing.assert_close(step(batch(1)), model(batch(1)))


def test_old_weights_are_not_kept_alive() -> None:
    model = make()
    step = plain_step(model, batch(0)).add(batch(0, rows=3))
    for rows in (8, 3):
        step(batch(0, rows)).sum().backward()
    old = [weakref.ref(p.untyped_storage()) for p in model.parameters()]
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    step(batch(1)).sum().backward()
    gc.collect()
    assert [reference() for reference in old] == [None] * len(old)


def test_parameters_of_any_layout() -> None:
    model = make()
    step = plain_step(model, batch(0))
    model[0].weight.data = torch.randn(6, 5).t()
    want = gradients(model, lambda: model(batch(1)).sum())
    assert_same(gradients(model, lambda: step(batch(1)).sum()), want)
    with torch.no_grad():
        model[0].weight.mul_(2)
    want = gradients(model, lambda: model(batch(1)).sum())
    assert_same(gradients(model, lambda: step(batch(1)).sum()), want)


def test_buffers_change_once_in_every_mode_that_eager_changes_them() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    twin = copy.deepcopy(model)
    step = plain_step(model, batch(0))
    version = model[1].running_mean._version
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            one, other = step(batch(1)), twin(batch(1))
        if grad:
            one.sum().backward()
            other.sum().backward()
    assert_same(list(model.buffers()), list(twin.buffers()))
    assert model[1].running_mean._version > version


def test_twenty_optimizer_steps_stay_with_eager() -> None:
    model = make()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    step = plain_step(model, batch(0))
    other = torch.optim.AdamW(twin.parameters(), 0.01)
    for seed in range(20):
        for run, update in ((step, optimizer), (twin, other)):
            update.zero_grad()
            run(batch(seed)).pow(2).mean().backward()
            update.step()
    assert_same(list(model.parameters()), list(twin.parameters()))


# ---- arguments that forward changes


class Counts(nn.Module):
    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state += x.sum(0)
        return x * state


def test_an_argument_changed_in_place_is_changed_whatever_its_layout() -> None:
    step = plain_step(Counts(), batch(0), torch.zeros(6))
    wide = torch.zeros(6, 2)
    for state in (torch.zeros(6), wide[:, 1]):
        version = state._version
        step(batch(1), state)
        torch.testing.assert_close(state, batch(1).sum(0))
        assert state._version > version
    assert torch.equal(wide[:, 0], torch.zeros(6))


def test_a_changed_argument_must_not_share_memory() -> None:
    step = plain_step(Counts(), torch.zeros(6, 6), torch.zeros(6))
    x = torch.ones(6, 6)
    with pytest.raises(ContractError, match=r"argument state is changed in place and shares"):
        step(x, x[0])
    assert torch.equal(x, torch.ones(6, 6))


# ---- errors while running


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.table(ids)


def test_an_index_error_leaves_the_step_and_the_model_usable() -> None:
    model = Lookup()
    step = plain_step(model, torch.tensor([1, 2]))
    for ids in (torch.tensor([1, 10]), torch.tensor([-1, 0])):
        with pytest.raises((ContractError, IndexError), match="out of range"):
            step(ids)
    assert float(model.calls) == 0
    step(torch.tensor([3, 9])).sum().backward()
    assert float(model.calls) == 1


# ---- random numbers


def test_the_generator_decides_the_masks_and_backward_uses_the_same() -> None:
    model = make(dropout=0.5)
    x = batch(1).requires_grad_()
    step = plain_step(model, x)
    torch.manual_seed(7)
    first = step(x).detach()
    second = step(x).detach()
    torch.manual_seed(7)
    state = torch.get_rng_state()
    again = step(x).detach()
    torch.set_rng_state(state)
    assert torch.equal(step(x).detach(), first) and torch.equal(first, again)
    assert not torch.equal(first, second)


def test_the_mask_of_a_retained_forward_is_kept_under_evaluation() -> None:
    model = nn.Dropout(0.5)
    x = torch.ones(64, requires_grad=True)
    step = plain_step(model, x)
    out = step(x)
    with torch.no_grad():
        step(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


# ---- threads and modes


def test_thread_count_may_change_and_calls_may_come_from_threads() -> None:
    model = make()
    step = plain_step(model, batch(0))
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            torch.testing.assert_close(step(batch(1)), model(batch(1)))
    finally:
        torch.set_num_threads(threads)
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    torch.testing.assert_close(step(batch(seed)), model(batch(seed)))
        except BaseException as error:
            faults.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not faults


def test_autocast_around_backward_changes_nothing() -> None:
    model = make()
    step = plain_step(model, batch(0))
    want = gradients(model, lambda: model(batch(1)).sum())
    loss = step(batch(1)).sum()
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()
    assert_same([p.grad for p in model.parameters()], want)


def test_a_step_compiled_under_autocast_runs_under_autocast() -> None:
    model = make()
    with torch.autocast("cpu", torch.bfloat16):
        step = plain_step(model, batch(0))
        want, got = model(batch(1)), step(batch(1))
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    with pytest.raises(ContractError, match="autocast is off, the step was compiled for bfloat16"):
        step(batch(1))


def test_transforms_are_refused() -> None:
    step = plain_step(make(), batch(0))
    with pytest.raises(UsageError, match=r"torch\.func transforms"):
        torch.func.grad(lambda x: step(x).sum())(batch(1))


def test_a_step_cannot_be_copied_or_pickled() -> None:
    step = plain_step(make(), batch(0))
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UsageError, match="bound to this model"):
            copying(step)


# ---- loss and outputs


def test_loss_and_targets() -> None:
    model = make()
    target = torch.randn(8, 3)
    step = plain_step(model, batch(0), targets=(target,), options={"loss": nn.functional.mse_loss})
    want = gradients(model, lambda: nn.functional.mse_loss(model(batch(1)), target))
    assert_same(gradients(model, lambda: step(batch(1), targets=(target,))), want)
    with pytest.raises(ContractError, match=r"argument loss targets\[0\] is left out"):
        step(batch(1))
    with pytest.raises(UsageError, match=r"targets must be a tuple, not a Tensor(.|\n)*\(y,\)"):
        step(batch(1), targets=target)


def test_a_model_may_have_targets_of_its_own() -> None:
    class Loss(nn.Module):
        def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return (x - targets).pow(2).mean()

    x, y = batch(1).requires_grad_(), batch(2)
    step = plain_step(Loss(), x, targets=y)
    torch.testing.assert_close(step(x, targets=y), (x - y).pow(2).mean())


class Packs(nn.Module):
    """Has parameters of its own that bear the name of what the loss takes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, *targets: torch.Tensor) -> Any:
        out: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
        for tensor in targets:
            out["all"].append(self.linear(tensor))
        return out


def test_targets_of_the_loss_and_of_the_model_do_not_meet() -> None:
    model = Packs()

    def loss(output: Any, *targets: torch.Tensor) -> torch.Tensor:
        assert output["none"] == []
        return sum((o - t).square().sum() for o, t in zip(output["all"], targets, strict=True))  # type: ignore[return-value]

    inputs, wanted = [torch.randn(2, 3) for _ in range(2)], [torch.randn(2, 3) for _ in range(2)]
    step = plain_step(model, *inputs, targets=wanted, options={"loss": loss})
    torch.testing.assert_close(
        step(*inputs, targets=wanted).detach(), loss(model(*inputs), *wanted).detach()
    )
    with pytest.raises(ContractError, match=r"argument loss targets\[1\] has shape \(4, 3\)"):
        step(*inputs, targets=[wanted[0], torch.ones(4, 3)])
    with pytest.raises(ContractError, match=r"argument targets\[1\] has shape \(4, 3\)"):
        step(inputs[0], torch.ones(4, 3), targets=wanted)


def test_a_defaultdict_keeps_its_factory() -> None:
    model, x = Packs(), torch.randn(2, 3)
    out = plain_step(model, x)(x)
    assert type(out) is defaultdict and out["new"] == [] and list(out) == ["all", "new"]
    torch.testing.assert_close(out["all"][0], model(x)["all"][0])


def test_outputs_that_were_dropped_are_not_made() -> None:
    model = Two()
    step = plain_step(model, batch(0), options={"outputs": "side"})
    out = step(batch(1))
    assert list(out) == ["main", "side", "flag"]
    with pytest.raises(UsageError, match=r"main was not kept(.|\n)*outputs=\('side', 'main'\)"):
        out["main"].sum()
    out["side"].sum().backward()
    assert len(step.plan.forward.results) == 1


# ---- library ops


@pytest.mark.parametrize("learned", ["image", "grid", "both"])
def test_results_that_a_library_op_gives_unasked(learned: str) -> None:
    class Sampler(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Parameter(torch.randn(1, 2, 4, 4), learned != "grid")
            self.grid = nn.Parameter(torch.rand(1, 3, 3, 2), learned != "image")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.grid_sample(self.image * x, self.grid, align_corners=False)

    model, x = Sampler(), torch.rand(1)
    step = plain_step(model, x)
    got = gradients(model, lambda: step(x).square().sum())
    assert_same(got, gradients(model, lambda: model(x).square().sum()))


# ---- what a step tells about itself


def test_texts(way: str) -> None:
    if way == "kernels":
        pytest.skip("stages and launches are other ones")
    model = make()
    step = plain_step(model, batch(0))
    assert step.stages == ("capture", "materialise")
    assert step.ir("backward").startswith("graph backward")
    assert step.ir("forward", stage="capture") == step.ir("joint", stage="capture")
    assert "tanh" in step.ir()
    with pytest.raises(UsageError, match="no entry 'sideways'"):
        step.ir("sideways")
    with pytest.raises(UsageError, match=r"no stage 'fuze'.*\n.*valid are capture, materialise"):
        step.ir(stage="fuze")
    text = step.explain()
    for part in ("forward: 0 kernel launches", "library ops:", "saved for backward:", "peak"):
        assert part in text
    assert str(step.memory).count("← peak") >= 1
    assert step.memory.peak_bytes == step.plan.peak_bytes
    assert repr(step).startswith("Step of Sequential\n  (input: f32[8,6]) train")
