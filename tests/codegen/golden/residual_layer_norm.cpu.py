# 64 rows in 2 blocks; x_pointer=operand 0, residual_pointer=operand 1, weight_pointer=operand 2, bias_pointer=operand 3, h_pointer=result 0, y_pointer=result 1, mean_pointer=result 2, rstd_pointer=result 3
# Turns of an innermost loop: the order of its sums follows from it.
LENGTH = 256


def kernel(
    begin,
    end,
    block,
    x_pointer,
    residual_pointer,
    weight_pointer,
    bias_pointer,
    h_pointer,
    y_pointer,
    mean_pointer,
    rstd_pointer,
):
    """64 rows of 256.

    graph body {
      %x: bf16[64,256] = input operand
      %residual: bf16[64,256] = input operand
      %weight: bf16[256] = input operand
      %bias: bf16[256] = input operand
      %h: bf16[64,256] = add(%x, %residual)
      %h.wide: f32[64,256] = cast(%h) [dtype=f32]
      %weight.wide: f32[256] = cast(%weight) [dtype=f32]
      %bias.wide: f32[256] = cast(%bias) [dtype=f32]
      %mean: f32[64,1] = mean(%h.wide) [axes=[1], keepdim=true]
      %centred: f32[64,256] = sub(%h.wide, %mean)
      %square: f32[64,256] = mul(%centred, %centred)
      %variance: f32[64,1] = mean(%square) [axes=[1], keepdim=true]
      %shifted: f32[64,1] = add(%variance, 1e-05)
      %rstd: f32[64,1] = rsqrt(%shifted)
      %normal: f32[64,256] = mul(%centred, %rstd)
      %scaled: f32[64,256] = mul(%normal, %weight.wide)
      %affine: f32[64,256] = add(%scaled, %bias.wide)
      %y: bf16[64,256] = cast(%affine) [dtype=bf16]
      output result = %h
      output result = %y
      output result = %mean
      output result = %rstd
    }
    """
    for row in range(begin, end):
        at = row * 256
        mean_so_far = float32(0.0)
        for j in range(256):
            x = load_bf16(x_pointer, at + j)
            residual = load_bf16(residual_pointer, at + j)
            h = nearest_bf16(add(x, residual))
            mean_so_far = accumulate_add(mean_so_far, h)
            store_bf16_rounded(h_pointer, at + j, h)
        mean = div(mean_so_far, float32(256.0))
        store_f32(mean_pointer, row, mean)
        variance_so_far = float32(0.0)
        for j in range(256):
            h = load_bf16(h_pointer, at + j)
            centred = sub(h, mean)
            square = mul(centred, centred)
            variance_so_far = accumulate_add(variance_so_far, square)
        variance = div(variance_so_far, float32(256.0))
        shifted = add(variance, float32(1e-05))
        rstd = rsqrt(shifted)
        store_f32(rstd_pointer, row, rstd)
        for j in range(256):
            h = load_bf16(h_pointer, at + j)
            centred = sub(h, mean)
            normal = mul(centred, rstd)
            weight = load_bf16(weight_pointer, j)
            scaled = mul(normal, weight)
            bias = load_bf16(bias_pointer, j)
            affine = add(scaled, bias)
            y = affine
            store_bf16_nearest(y_pointer, at + j, y)

# workspaces [], in place [(0, 0), (0, 1), (1, 0), (1, 1)]
