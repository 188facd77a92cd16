# 16 rows in 16 blocks; x_pointer=operand 0, y_pointer=result 0
# Turns of an innermost loop: the order of its sums follows from it.
LENGTH = 200000
# Vectors at a time: the dearest function takes long, and others need not wait.
INTERLEAVE = 4


def kernel(begin, end, block, x_pointer, y_pointer):
    """16 rows of 200000.

    graph body {
      %x: f32[16,200000] = input operand
      %x.wide: f32[16,200000] = cast(%x) [dtype=f32]
      %max: f32[16,1] = amax(%x.wide) [axes=[1], keepdim=true]
      %shifted: f32[16,200000] = sub(%x.wide, %max)
      %exp: f32[16,200000] = exp(%shifted)
      %sum: f32[16,1] = sum(%exp) [axes=[1], keepdim=true]
      %quotient: f32[16,200000] = div(%exp, %sum)
      %y: f32[16,200000] = cast(%quotient) [dtype=f32]
      output result = %y
    }
    """
    for row in range(begin, end):
        at = row * 200000
        max_so_far = float32(-infinity)
        max_in_all = float32(-infinity)
        for first in range(0, 200000, 16384):
            max_so_far = float32(-infinity)
            for j in range(first, first + 16384 if first < 183616 else 200000):
                x = load_f32(x_pointer, at + j)
                max_so_far = accumulate_max(max_so_far, x)
            max_in_all = maximum(max_in_all, max_so_far)
        max_so_far = max_in_all
        max_value = max_so_far
        sum_so_far = float32(0.0)
        sum_in_all = float64(0.0)
        for first_2 in range(0, 200000, 16384):
            sum_so_far = float32(0.0)
            for j in range(first_2, first_2 + 16384 if first_2 < 183616 else 200000):
                x = load_f32(x_pointer, at + j)
                shifted = sub(x, max_value)
                exp_value = exp_nonpositive(shifted)
                sum_so_far = accumulate_add(sum_so_far, exp_value)
            sum_in_all = add(sum_in_all, float64(sum_so_far))
        sum_so_far = float32(sum_in_all)
        sum = sum_so_far
        for j in range(200000):
            x = load_f32(x_pointer, at + j)
            shifted = sub(x, max_value)
            exp_value = exp_nonpositive(shifted)
            quotient = div(exp_value, sum)
            y = quotient
            store_f32(y_pointer, at + j, y)

# workspaces [], in place [(0, 0)]
