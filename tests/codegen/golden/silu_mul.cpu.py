# 704 rows in 64 blocks; gate_pointer=operand 0, up_pointer=operand 1, y_pointer=result 0
# Turns of an innermost loop: the order of its sums follows from it.
LENGTH = 4096
# Vectors at a time: the dearest function takes long, and others need not wait.
INTERLEAVE = 4


def kernel(begin, end, block, gate_pointer, up_pointer, y_pointer):
    """2883584 elements.

    In pieces of 4096 elements: work for all threads, and each fits L1.

    graph body {
      %gate: bf16[1024,2816] = input operand
      %up: bf16[1024,2816] = input operand
      %active: bf16[1024,2816] = silu(%gate)
      %y: bf16[1024,2816] = mul(%active, %up)
      output result = %y
    }
    """
    for piece in range(begin, end):
        start = piece * 4096
        for j in range(4096):
            gate = load_bf16(gate_pointer, start + j)
            active = nearest_bf16(silu(gate))
            up = load_bf16(up_pointer, start + j)
            y = mul(active, up)
            store_bf16_nearest(y_pointer, start + j, y)

# workspaces [], in place [(0, 0), (1, 0)]
