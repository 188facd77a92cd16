# 25 rows in 7 blocks; x_pointer=operand 0, key_pointer=operand 1, y_pointer=result 0, scratch=workspace 0, keep_stream=number 7
# Turns of an innermost loop: the order of its sums follows from it.
LENGTH = 4096


def kernel(begin, end, block, x_pointer, key_pointer, y_pointer, scratch, keep_stream):
    """100000 elements.

    In pieces of 4096 elements: work for all threads, and each fits L1.

    graph body {
      %x: f32[100,1000] = input operand
      %key: i64[] = input operand
      %keep: b8[100,1000] = bernoulli(%key) [bits=16, probability=0.1, shape=[100, 1000]]
      %scaled: f32[100,1000] = mul(%x, 1.1111111111111112)
      %y: f32[100,1000] = where(%keep, %scaled, 0)
      output result = %y
    }
    """
    words_of_keep = advance(scratch, block * 8192)
    key = load_i64(key_pointer, 0)
    for piece in range(begin, end):
        start = piece * 4096
        count = minimum(int64(4096), 100000 - start)
        philox_row(words_of_keep, start, count, key, key >> 32, keep_stream)
        for j in range(count):
            keep = ge(load_u16(words_of_keep, j), int32(6554))
            x = load_f32(x_pointer, start + j)
            scaled = mul(x, float32(1.1111111111111112))
            y = where(keep, scaled, float32(0.0))
            store_f32(y_pointer, start + j, y)

# workspaces [57344], in place [(0, 0)]
