# 128 rows in 10 blocks; x_pointer=operand 0, y_pointer=result 0, scratch=workspace 0
LENGTH = 512
INTERLEAVE = 4


def kernel(begin, end, block, x_pointer, y_pointer, scratch):
    """128 rows of 512.

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
        max_amax = float32(-infinity)
        for j in range(512):
            x = load_f32(x_pointer, at + j)
            max_amax = accumulate_max(max_amax, x)
        max_value = max_amax
        sum_sum = float32(0.0)
        for j in range(512):
            x = load_f32(x_pointer, at + j)
            shifted = sub(x, max_value)
            exp_value = exp_nonpositive(shifted)
            sum_sum = accumulate_add(sum_sum, exp_value)
            store_f32(kept_exp, j, exp_value)
        sum = sum_sum
        for j in range(512):
            exp_value = load_f32(kept_exp, j)
            quotient = div(exp_value, sum)
            y = quotient
            store_f32(y_pointer, at + j, y)

# workspaces [20480], in place [(0, 0)]
