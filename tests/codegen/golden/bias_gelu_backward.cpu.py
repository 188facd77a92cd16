# 512 rows in 16 blocks; gradient_pointer=operand 0, x_pointer=operand 1, bias_pointer=operand 2, dx_pointer=result 0, partials=workspace 0
# Turns of an innermost loop: the order of its sums follows from it.
LENGTH = 3072
# Vectors at a time: the dearest function takes long, and others need not wait.
INTERLEAVE = 4


def kernel(begin, end, block, gradient_pointer, x_pointer, bias_pointer, dx_pointer, partials):
    """512 rows of 3072.

    Each of 16 blocks adds its rows of %dbias: the next kernel adds the blocks.

    graph body {
      %gradient: f32[512,3072] = input operand
      %x: f32[512,3072] = input operand
      %bias: f32[3072] = input operand
      %biased: f32[512,3072] = add(%x, %bias)
      %dx: f32[512,3072] = gelu_backward(%gradient, %biased) [approximate="none"]
      %dbias: f32[3072] = sum(%dx) [axes=[0], dtype=f32, keepdim=false]
      output result = %dx
      output result = %dbias
    }
    """
    partial_dbias = advance(partials, block * 12288)
    for j in range(3072):
        store_f32(partial_dbias, j, float32(0.0))
    for row in range(begin, end):
        at = row * 3072
        for j in range(3072):
            x = load_f32(x_pointer, at + j)
            bias = load_f32(bias_pointer, j)
            biased = add(x, bias)
            gradient = load_f32(gradient_pointer, at + j)
            dx = gelu_erf_backward(gradient, biased)
            store_f32(partial_dbias, j, add(load_f32(partial_dbias, j), dx))
            store_f32(dx_pointer, at + j, dx)

# 3072 rows in 1 blocks; partials=workspace 0, dbias_pointer=result 1
def kernel(begin, end, block, partials, dbias_pointer):
    """Adds the partial sums of 16 blocks in their order.

    %dbias: f32[3072] = sum(%dx) [axes=[0], dtype=f32, keepdim=false]
    """
    first_dbias = advance(partials, 0)
    for k in range(1, 16):
        other_dbias = advance(partials, k * 12288)
        for j in range(begin, end):
            store_f32(first_dbias, j, add(load_f32(first_dbias, j), load_f32(other_dbias, j)))
    for j in range(begin, end):
        store_f32(dbias_pointer, j, load_f32(first_dbias, j))

# workspaces [196608], in place [(0, 0), (1, 0)]
