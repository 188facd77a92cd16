# 256 rows in 16 blocks; logits_pointer=operand 0, target_pointer=operand 1, logsumexp_pointer=result 1, partials=workspace 0
# Turns of an innermost loop: the order of its sums follows from it.
LENGTH = 32000
# Vectors at a time: the dearest function takes long, and others need not wait.
INTERLEAVE = 4


def kernel(begin, end, block, logits_pointer, target_pointer, logsumexp_pointer, partials):
    """256 rows of 32000.

    Each of 16 blocks adds its rows of %loss: the next kernel adds the blocks.

    graph body {
      %logits: bf16[256,32000] = input operand
      %target: i64[256,1] = input operand
      %x: f32[256,32000] = cast(%logits) [dtype=f32]
      %max: f32[256,1] = amax(%x) [axes=[1], keepdim=true]
      %shifted: f32[256,32000] = sub(%x, %max)
      %exp: f32[256,32000] = exp(%shifted)
      %sum: f32[256,1] = sum(%exp) [axes=[1], keepdim=true]
      %log: f32[256,1] = log(%sum)
      %logsumexp: f32[256,1] = add(%log, %max)
      %class: i64[32000] = iota() [dtype=i64, length=32000, start=0, step=1]
      %is_target: b8[256,32000] = eq(%class, %target)
      %chosen: f32[256,32000] = where(%is_target, %x, 0)
      %picked: f32[256,1] = sum(%chosen) [axes=[1], keepdim=true]
      %row_loss: f32[256,1] = sub(%logsumexp, %picked)
      %loss: f32[] = mean(%row_loss) [axes=[0, 1], keepdim=false]
      output result = %loss
      output result = %logsumexp
    }
    """
    total_loss = float32(0.0)
    for row in range(begin, end):
        at = row * 32000
        target = load_i64(target_pointer, row)
        max_so_far = float32(-infinity)
        picked_so_far = float32(0.0)
        max_in_all = float32(-infinity)
        picked_in_all = float64(0.0)
        for first in range(0, 32000, 16384):
            max_so_far = float32(-infinity)
            picked_so_far = float32(0.0)
            for j in range(first, first + 16384 if first < 15616 else 32000):
                class_value = int64(j)
                is_target = eq(class_value, target)
                logits = load_bf16(logits_pointer, at + j)
                chosen = where(is_target, logits, float32(0.0))
                max_so_far = accumulate_max(max_so_far, logits)
                picked_so_far = accumulate_add(picked_so_far, chosen)
            max_in_all = maximum(max_in_all, max_so_far)
            picked_in_all = add(picked_in_all, float64(picked_so_far))
        max_so_far = max_in_all
        picked_so_far = float32(picked_in_all)
        max_value = max_so_far
        picked = picked_so_far
        sum_so_far = float32(0.0)
        sum_in_all = float64(0.0)
        for first_2 in range(0, 32000, 16384):
            sum_so_far = float32(0.0)
            for j in range(first_2, first_2 + 16384 if first_2 < 15616 else 32000):
                logits = load_bf16(logits_pointer, at + j)
                shifted = sub(logits, max_value)
                exp_value = exp_nonpositive(shifted)
                sum_so_far = accumulate_add(sum_so_far, exp_value)
            sum_in_all = add(sum_in_all, float64(sum_so_far))
        sum_so_far = float32(sum_in_all)
        sum = sum_so_far
        log_value = log(sum)
        logsumexp = add(log_value, max_value)
        row_loss = sub(logsumexp, picked)
        total_loss = accumulate_add(total_loss, row_loss)
        store_f32(logsumexp_pointer, row, logsumexp)
    store_f32(advance(partials, block * 64), 0, total_loss)

# 1 rows in 1 blocks; partials=workspace 0, loss_pointer=result 0
def kernel(begin, end, block, partials, loss_pointer):
    """Adds the partial sums of 16 blocks in their order.

    %loss: f32[] = mean(%row_loss) [axes=[0, 1], keepdim=false]
    """
    if begin == 0:
        total_loss = float32(0.0)
        for k in range(16):
            total_loss = add(total_loss, load_f32(advance(partials, k * 64), 0))
        store_f32(loss_pointer, 0, div(total_loss, float32(256.0)))

# workspaces [1024], in place []
