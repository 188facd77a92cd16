# 128 rows in 10 blocks; x_pointer=operand 0, y_pointer=result 0, scratch=workspace 0
# Turns of an innermost loop: the order of its sums follows from it.
LENGTH = 512
# Vectors at a time: the dearest function takes long, and others need not wait.
INTERLEAVE = 4


def kernel(begin, end, block, x_pointer, y_pointer, scratch):
    """128 rows of 512.

    A row of scratch, `kept_…`, has what a later loop reads and need not compute again.

    graph body {
      %x: f32[128,512] = input operand
      %x.wide: f32[128,512] = cast(%x) [dtype=f32]
      %max: f32[128,1] = amax(%x.wide) [axes=[1], keepdim=true]
      %shifted: f32[128,512] = sub(%x.wide, %max)
      %exp: f32[128,512] = exp(%shifted)
      %sum: f32[128,1] = sum(%exp) [axes=[1], keepdim=true]
      %quotient: f32[128,512] = div(%exp, %sum)
      %y: f32[128,512] = cast(%quotient) [dtype=f32]
      output result = %y
    }
    """
    kept_exp = advance(scratch, block * 2048)
    for row in range(begin, end):
        at = row * 512
        max_so_far = float32(-infinity)
        for j in range(512):
            x = load_f32(x_pointer, at + j)
            max_so_far = accumulate_max(max_so_far, x)
        max_value = max_so_far
        sum_so_far = float32(0.0)
        for j in range(512):
            x = load_f32(x_pointer, at + j)
            shifted = sub(x, max_value)
            exp_value = exp_nonpositive(shifted)
            sum_so_far = accumulate_add(sum_so_far, exp_value)
            store_f32(kept_exp, j, exp_value)
        sum = sum_so_far
        for j in range(512):
            exp_value = load_f32(kept_exp, j)
            quotient = div(exp_value, sum)
            y = quotient
            store_f32(y_pointer, at + j, y)

# workspaces [20480], in place [(0, 0)]
