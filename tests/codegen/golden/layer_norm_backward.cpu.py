# 2048 rows in 16 blocks; gradient_pointer=operand 0, x_pointer=operand 1, mean_pointer=operand 2, rstd_pointer=operand 3, weight_pointer=operand 4, dx_pointer=result 0, partials=workspace 0
# Turns of an innermost loop: the order of its sums follows from it.
LENGTH = 768


def kernel(
    begin,
    end,
    block,
    gradient_pointer,
    x_pointer,
    mean_pointer,
    rstd_pointer,
    weight_pointer,
    dx_pointer,
    partials,
):
    """2048 rows of 768.

    Each of 16 blocks adds its rows of %dweight, %dbias: the next kernel adds the blocks.

    graph body {
      %gradient: f32[2048,768] = input operand
      %x: f32[2048,768] = input operand
      %mean: f32[2048,1] = input operand
      %rstd: f32[2048,1] = input operand
      %weight: f32[768] = input operand
      %gradient.wide: f32[2048,768] = cast(%gradient) [dtype=f32]
      %x.wide: f32[2048,768] = cast(%x) [dtype=f32]
      %weight.wide: f32[768] = cast(%weight) [dtype=f32]
      %centred: f32[2048,768] = sub(%x.wide, %mean)
      %normal: f32[2048,768] = mul(%centred, %rstd)
      %inner: f32[2048,768] = mul(%gradient.wide, %weight.wide)
      %product: f32[2048,768] = mul(%inner, %normal)
      %mean_product: f32[2048,1] = mean(%product) [axes=[1], keepdim=true]
      %along: f32[2048,768] = mul(%normal, %mean_product)
      %mean_gradient: f32[2048,1] = mean(%inner) [axes=[1], keepdim=true]
      %flat: f32[2048,768] = sub(%inner, %mean_gradient)
      %difference: f32[2048,768] = sub(%flat, %along)
      %dx.wide: f32[2048,768] = mul(%difference, %rstd)
      %dx: f32[2048,768] = cast(%dx.wide) [dtype=f32]
      %weighted: f32[2048,768] = mul(%gradient.wide, %normal)
      %dweight: f32[768] = sum(%weighted) [axes=[0], dtype=f32, keepdim=false]
      %dbias: f32[768] = sum(%gradient.wide) [axes=[0], dtype=f32, keepdim=false]
      output result = %dx
      output result = %dweight
      output result = %dbias
    }
    """
    partial_dweight = advance(partials, block * 7360)
    for j in range(768):
        store_f32(partial_dweight, j, float32(0.0))
    partial_dbias = advance(partials, block * 7360 + 4288)
    for j in range(768):
        store_f32(partial_dbias, j, float32(0.0))
    for row in range(begin, end):
        at = row * 768
        mean = load_f32(mean_pointer, row)
        rstd = load_f32(rstd_pointer, row)
        mean_product_so_far = float32(0.0)
        mean_gradient_so_far = float32(0.0)
        for j in range(768):
            x = load_f32(x_pointer, at + j)
            centred = sub(x, mean)
            normal = mul(centred, rstd)
            gradient = load_f32(gradient_pointer, at + j)
            weight = load_f32(weight_pointer, j)
            inner = mul(gradient, weight)
            product = mul(inner, normal)
            weighted = mul(gradient, normal)
            mean_product_so_far = accumulate_add(mean_product_so_far, product)
            mean_gradient_so_far = accumulate_add(mean_gradient_so_far, inner)
            store_f32(partial_dweight, j, add(load_f32(partial_dweight, j), weighted))
            store_f32(partial_dbias, j, add(load_f32(partial_dbias, j), gradient))
        mean_product = div(mean_product_so_far, float32(768.0))
        mean_gradient = div(mean_gradient_so_far, float32(768.0))
        for j in range(768):
            x = load_f32(x_pointer, at + j)
            centred = sub(x, mean)
            normal = mul(centred, rstd)
            gradient = load_f32(gradient_pointer, at + j)
            weight = load_f32(weight_pointer, j)
            inner = mul(gradient, weight)
            along = mul(normal, mean_product)
            flat = sub(inner, mean_gradient)
            difference = sub(flat, along)
            dx_wide = mul(difference, rstd)
            dx = dx_wide
            store_f32(dx_pointer, at + j, dx)

# 768 rows in 1 blocks; partials=workspace 0, dweight_pointer=result 1, dbias_pointer=result 2
def kernel(begin, end, block, partials, dweight_pointer, dbias_pointer):
    """Adds the partial sums of 16 blocks in their order.

    %dweight: f32[768] = sum(%weighted) [axes=[0], dtype=f32, keepdim=false]
    %dbias: f32[768] = sum(%gradient) [axes=[0], dtype=f32, keepdim=false]
    """
    first_dweight = advance(partials, 0)
    for k in range(1, 16):
        other_dweight = advance(partials, k * 7360)
        for j in range(begin, end):
            store_f32(first_dweight, j, add(load_f32(first_dweight, j), load_f32(other_dweight, j)))
    for j in range(begin, end):
        store_f32(dweight_pointer, j, load_f32(first_dweight, j))
    first_dbias = advance(partials, 4288)
    for k in range(1, 16):
        other_dbias = advance(partials, k * 7360 + 4288)
        for j in range(begin, end):
            store_f32(first_dbias, j, add(load_f32(first_dbias, j), load_f32(other_dbias, j)))
    for j in range(begin, end):
        store_f32(dbias_pointer, j, load_f32(first_dbias, j))

# workspaces [117760], in place [(0, 0), (1, 0)]
