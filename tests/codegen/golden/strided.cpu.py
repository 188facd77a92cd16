# 2 rows in 1 blocks; x_pointer=operand 0, mask_pointer=operand 1, y_pointer=result 0
# Turns of an innermost loop: the order of its sums follows from it.
LENGTH = 32


def kernel(begin, end, block, x_pointer, mask_pointer, y_pointer):
    """1536 rows (2 × 12 × 64) of 32.

    The last axes are loops of their own: rows are short, and divisions cost more.

    graph body {
      %x: f32[2,12,64,32] = input operand
      %mask: b8[2,1,64,32] = input operand
      %y: f32[2,12,64,32] = where(%mask, %x, 0)
      output result = %y
    }
    """
    for row in range(begin, end):
        for row_1 in range(12):
            for row_2 in range(64):
                # Where the row begins in each operand, in elements.
                at = row * 24576 + row_1 * 32 + row_2 * 384
                at_mask = row * 2048 + row_2 * 32
                at_result_0 = row * 24576 + row_1 * 2048 + row_2 * 32
                for j in range(32):
                    mask = load_b8(mask_pointer, at_mask + j)
                    x = load_f32(x_pointer, at + j)
                    y = where(mask, x, float32(0.0))
                    store_f32(y_pointer, at_result_0 + j, y)

# workspaces [], in place []
