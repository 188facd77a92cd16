# 4096 rows in 16 blocks; gradient_pointer=operand 0, h_pointer=operand 1, z_pointer=operand 2, mean_pointer=operand 3, rstd_pointer=operand 4, rms_rstd_pointer=operand 5, logsumexp_pointer=operand 6, ln_weight_pointer=operand 7, ln_bias_pointer=operand 8, bias_pointer=operand 9, rms_weight_pointer=operand 10, target_pointer=operand 11, key_pointer=operand 12, dx_pointer=result 0, scratch=workspace 1, partials=workspace 0, keep_stream=number 7
# Turns of an innermost loop: the order of its sums follows from it.
LENGTH = 1024
# Vectors at a time: the dearest function takes long, and others need not wait.
INTERLEAVE = 4


def kernel(
    begin,
    end,
    block,
    gradient_pointer,
    h_pointer,
    z_pointer,
    mean_pointer,
    rstd_pointer,
    rms_rstd_pointer,
    logsumexp_pointer,
    ln_weight_pointer,
    ln_bias_pointer,
    bias_pointer,
    rms_weight_pointer,
    target_pointer,
    key_pointer,
    dx_pointer,
    scratch,
    partials,
    keep_stream,
):
    """4096 rows of 1024.

    A row of scratch, `kept_…`, has what a later loop reads and need not compute again.
    Each of 16 blocks adds its rows of %rms.dweight, %dbias, %ln.dweight, %ln.dbias: the next kernel adds the blocks.

    graph body {
      %gradient: f32[] = input operand
      %h: bf16[4096,1024] = input operand
      %z: bf16[4096,1024] = input operand
      %mean: f32[4096,1] = input operand
      %rstd: f32[4096,1] = input operand
      %rms.rstd: f32[4096,1] = input operand
      %logsumexp: f32[4096,1] = input operand
      %ln.weight: bf16[1024] = input operand
      %ln.bias: bf16[1024] = input operand
      %bias: bf16[1024] = input operand
      %rms.weight: bf16[1024] = input operand
      %target: i64[4096,1] = input operand
      %key: i64[] = input operand
      %ln.weight.wide: f32[1024] = cast(%ln.weight) [dtype=f32]
      %ln.bias.wide: f32[1024] = cast(%ln.bias) [dtype=f32]
      %rms.weight.wide: f32[1024] = cast(%rms.weight) [dtype=f32]
      %z.wide: f32[4096,1024] = cast(%z) [dtype=f32]
      %rms.normal: f32[4096,1024] = mul(%z.wide, %rms.rstd)
      %rms.scaled: f32[4096,1024] = mul(%rms.normal, %rms.weight.wide)
      %logits: bf16[4096,1024] = cast(%rms.scaled) [dtype=bf16]
      %logits.wide: f32[4096,1024] = cast(%logits) [dtype=f32]
      %logits.shifted: f32[4096,1024] = sub(%logits.wide, %logsumexp)
      %probability: f32[4096,1024] = exp(%logits.shifted)
      %class: i64[1024] = iota() [dtype=i64, length=1024, start=0, step=1]
      %is_target: b8[4096,1024] = eq(%class, %target)
      %one: f32[4096,1024] = where(%is_target, 1, 0) [dtype=f32]
      %difference: f32[4096,1024] = sub(%probability, %one)
      %share: f32[] = div(%gradient, 4096)
      %dlogits.wide: f32[4096,1024] = mul(%difference, %share)
      %dlogits: bf16[4096,1024] = cast(%dlogits.wide) [dtype=bf16]
      %dy: f32[4096,1024] = cast(%dlogits) [dtype=f32]
      %rms.inner: f32[4096,1024] = mul(%dy, %rms.weight.wide)
      %rms.product: f32[4096,1024] = mul(%rms.inner, %rms.normal)
      %rms.mean_product: f32[4096,1] = mean(%rms.product) [axes=[1], keepdim=true]
      %rms.along: f32[4096,1024] = mul(%rms.normal, %rms.mean_product)
      %rms.difference: f32[4096,1024] = sub(%rms.inner, %rms.along)
      %dz.wide: f32[4096,1024] = mul(%rms.difference, %rms.rstd)
      %dz: bf16[4096,1024] = cast(%dz.wide) [dtype=bf16]
      %rms.weighted: f32[4096,1024] = mul(%dy, %rms.normal)
      %rms.dweight: bf16[1024] = sum(%rms.weighted) [axes=[0], dtype=bf16, keepdim=false]
      %keep: b8[4096,1024] = bernoulli(%key) [bits=16, probability=0.1, shape=[4096, 1024]]
      %dz.scaled: bf16[4096,1024] = mul(%dz, 1.1111111111111112)
      %ddropped: bf16[4096,1024] = where(%keep, %dz.scaled, 0)
      %h.wide: f32[4096,1024] = cast(%h) [dtype=f32]
      %centred: f32[4096,1024] = sub(%h.wide, %mean)
      %normal: f32[4096,1024] = mul(%centred, %rstd)
      %scaled: f32[4096,1024] = mul(%normal, %ln.weight.wide)
      %affine: f32[4096,1024] = add(%scaled, %ln.bias.wide)
      %ln: bf16[4096,1024] = cast(%affine) [dtype=bf16]
      %biased: bf16[4096,1024] = add(%ln, %bias)
      %dbiased: bf16[4096,1024] = gelu_backward(%ddropped, %biased)
      %dbias: bf16[1024] = sum(%dbiased) [axes=[0], dtype=bf16, keepdim=false]
      %dln: f32[4096,1024] = cast(%dbiased) [dtype=f32]
      %inner: f32[4096,1024] = mul(%dln, %ln.weight.wide)
      %product: f32[4096,1024] = mul(%inner, %normal)
      %mean_product: f32[4096,1] = mean(%product) [axes=[1], keepdim=true]
      %along: f32[4096,1024] = mul(%normal, %mean_product)
      %mean_gradient: f32[4096,1] = mean(%inner) [axes=[1], keepdim=true]
      %flat: f32[4096,1024] = sub(%inner, %mean_gradient)
      %ln.difference: f32[4096,1024] = sub(%flat, %along)
      %dh.wide: f32[4096,1024] = mul(%ln.difference, %rstd)
      %dh: bf16[4096,1024] = cast(%dh.wide) [dtype=bf16]
      %weighted: f32[4096,1024] = mul(%dln, %normal)
      %ln.dweight: bf16[1024] = sum(%weighted) [axes=[0], dtype=bf16, keepdim=false]
      %ln.dbias: bf16[1024] = sum(%dln) [axes=[0], dtype=bf16, keepdim=false]
      %dx: bf16[4096,1024] = add(%dh, %dz)
      output result = %dx
      output result = %rms.dweight
      output result = %dbias
      output result = %ln.dweight
      output result = %ln.dbias
    }
    """
    kept_rms_inner = advance(scratch, block * 23488)
    kept_dz = advance(scratch, block * 23488 + 4288)
    kept_normal = advance(scratch, block * 23488 + 8576)
    kept_inner = advance(scratch, block * 23488 + 12864)
    kept_product = advance(scratch, block * 23488 + 17152)
    words_of_keep = advance(scratch, block * 23488 + 21440)
    gradient = settled(load_f32(gradient_pointer, 0))
    key = load_i64(key_pointer, 0)
    share = div(gradient, float32(4096.0))
    partial_rms_dweight = advance(partials, block * 16960)
    for j in range(1024):
        store_f32(partial_rms_dweight, j, float32(0.0))
    partial_dbias = advance(partials, block * 16960 + 4288)
    for j in range(1024):
        store_f32(partial_dbias, j, float32(0.0))
    partial_ln_dweight = advance(partials, block * 16960 + 8576)
    for j in range(1024):
        store_f32(partial_ln_dweight, j, float32(0.0))
    partial_ln_dbias = advance(partials, block * 16960 + 12864)
    for j in range(1024):
        store_f32(partial_ln_dbias, j, float32(0.0))
    for row in range(begin, end):
        at = row * 1024
        rms_rstd = settled(load_f32(rms_rstd_pointer, row))
        logsumexp = settled(load_f32(logsumexp_pointer, row))
        target = load_i64(target_pointer, row)
        rms_mean_product_so_far = float32(0.0)
        for j in range(1024):
            z = load_bf16(z_pointer, at + j)
            rms_normal = mul(z, rms_rstd)
            rms_weight = load_bf16(rms_weight_pointer, j)
            rms_scaled = mul(rms_normal, rms_weight)
            logits = nearest_bf16(rms_scaled)
            logits_shifted = sub(logits, logsumexp)
            probability = exp(logits_shifted)
            class_value = int64(j)
            is_target = eq(class_value, target)
            one = where(is_target, float32(1.0), float32(0.0))
            difference = sub(probability, one)
            dlogits_wide = mul(difference, share)
            dlogits = nearest_bf16(dlogits_wide)
            rms_inner = mul(dlogits, rms_weight)
            rms_product = mul(rms_inner, rms_normal)
            rms_weighted = mul(dlogits, rms_normal)
            rms_mean_product_so_far = accumulate_add(rms_mean_product_so_far, rms_product)
            store_f32(partial_rms_dweight, j, add(load_f32(partial_rms_dweight, j), rms_weighted))
            store_f32(kept_rms_inner, j, rms_inner)
        rms_mean_product = div(rms_mean_product_so_far, float32(1024.0))
        philox_row(words_of_keep, at, 1024, key, key >> 32, keep_stream)
        mean = settled(load_f32(mean_pointer, row))
        rstd = settled(load_f32(rstd_pointer, row))
        for j in range(1024):
            z = load_bf16(z_pointer, at + j)
            rms_normal = mul(z, rms_rstd)
            rms_inner = load_f32(kept_rms_inner, j)
            rms_along = mul(rms_normal, rms_mean_product)
            rms_difference = sub(rms_inner, rms_along)
            dz_wide = mul(rms_difference, rms_rstd)
            dz = nearest_bf16(dz_wide)
            keep = ge(load_u16(words_of_keep, j), int32(6554))
            dz_scaled = nearest_bf16(mul(dz, float32(1.1111111111111112)))
            ddropped = where(keep, dz_scaled, float32(0.0))
            h = load_bf16(h_pointer, at + j)
            centred = sub(h, mean)
            normal = mul(centred, rstd)
            ln_weight = load_bf16(ln_weight_pointer, j)
            scaled = mul(normal, ln_weight)
            ln_bias = load_bf16(ln_bias_pointer, j)
            affine = add(scaled, ln_bias)
            ln = nearest_bf16(affine)
            bias = load_bf16(bias_pointer, j)
            biased = nearest_bf16(add(ln, bias))
            dbiased = nearest_bf16(gelu_erf_backward(ddropped, biased))
            inner = mul(dbiased, ln_weight)
            product = mul(inner, normal)
            weighted = mul(dbiased, normal)
            store_f32(partial_dbias, j, add(load_f32(partial_dbias, j), dbiased))
            store_f32(partial_ln_dweight, j, add(load_f32(partial_ln_dweight, j), weighted))
            store_f32(partial_ln_dbias, j, add(load_f32(partial_ln_dbias, j), dbiased))
            store_f32(kept_dz, j, dz)
            store_f32(kept_normal, j, normal)
            store_f32(kept_inner, j, inner)
            store_f32(kept_product, j, product)
        mean_product_so_far = float32(0.0)
        mean_gradient_so_far = float32(0.0)
        for j in range(1024):
            inner = load_f32(kept_inner, j)
            product = load_f32(kept_product, j)
            mean_product_so_far = accumulate_add(mean_product_so_far, product)
            mean_gradient_so_far = accumulate_add(mean_gradient_so_far, inner)
        mean_product = div(mean_product_so_far, float32(1024.0))
        mean_gradient = div(mean_gradient_so_far, float32(1024.0))
        for j in range(1024):
            dz = load_f32(kept_dz, j)
            normal = load_f32(kept_normal, j)
            inner = load_f32(kept_inner, j)
            along = mul(normal, mean_product)
            flat = sub(inner, mean_gradient)
            ln_difference = sub(flat, along)
            dh_wide = mul(ln_difference, rstd)
            dh = nearest_bf16(dh_wide)
            dx = add(dh, dz)
            store_bf16_nearest(dx_pointer, at + j, dx)

# 1024 rows in 1 blocks; partials=workspace 0, rms_dweight_pointer=result 1, dbias_pointer=result 2, ln_dweight_pointer=result 3, ln_dbias_pointer=result 4
def kernel(
    begin,
    end,
    block,
    partials,
    rms_dweight_pointer,
    dbias_pointer,
    ln_dweight_pointer,
    ln_dbias_pointer,
):
    """Adds the partial sums of 16 blocks in their order.

    %rms.dweight: bf16[1024] = sum(%rms.weighted) [axes=[0], dtype=bf16, keepdim=false]
    %dbias: bf16[1024] = sum(%dbiased) [axes=[0], dtype=bf16, keepdim=false]
    %ln.dweight: bf16[1024] = sum(%weighted) [axes=[0], dtype=bf16, keepdim=false]
    %ln.dbias: bf16[1024] = sum(%dbiased) [axes=[0], dtype=bf16, keepdim=false]
    """
    first_rms_dweight = advance(partials, 0)
    for k in range(1, 16):
        other_rms_dweight = advance(partials, k * 16960)
        for j in range(begin, end):
            store_f32(first_rms_dweight, j, add(load_f32(first_rms_dweight, j), load_f32(other_rms_dweight, j)))
    for j in range(begin, end):
        store_bf16(rms_dweight_pointer, j, load_f32(first_rms_dweight, j))
    first_dbias = advance(partials, 4288)
    for k in range(1, 16):
        other_dbias = advance(partials, k * 16960 + 4288)
        for j in range(begin, end):
            store_f32(first_dbias, j, add(load_f32(first_dbias, j), load_f32(other_dbias, j)))
    for j in range(begin, end):
        store_bf16(dbias_pointer, j, load_f32(first_dbias, j))
    first_ln_dweight = advance(partials, 8576)
    for k in range(1, 16):
        other_ln_dweight = advance(partials, k * 16960 + 8576)
        for j in range(begin, end):
            store_f32(first_ln_dweight, j, add(load_f32(first_ln_dweight, j), load_f32(other_ln_dweight, j)))
    for j in range(begin, end):
        store_bf16(ln_dweight_pointer, j, load_f32(first_ln_dweight, j))
    first_ln_dbias = advance(partials, 12864)
    for k in range(1, 16):
        other_ln_dbias = advance(partials, k * 16960 + 12864)
        for j in range(begin, end):
            store_f32(first_ln_dbias, j, add(load_f32(first_ln_dbias, j), load_f32(other_ln_dbias, j)))
    for j in range(begin, end):
        store_bf16(ln_dbias_pointer, j, load_f32(first_ln_dbias, j))

# workspaces [271360, 375808], in place [(1, 0), (2, 0)]
