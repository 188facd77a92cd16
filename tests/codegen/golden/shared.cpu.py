# 1 rows in 1 blocks; gate_pointer=operand 0, up_pointer=result 0
# Turns of an innermost loop: the order of its sums follows from it.
LENGTH = 800
# Vectors at a time: the dearest function takes long, and others need not wait.
INTERLEAVE = 4


def kernel(begin, end, block, gate_pointer, up_pointer):
    """800 elements.

    %y takes the place of %up, which nobody reads again.

    graph body {
      %gate: f32[8,100] = input operand
      %up: f32[8,100] = input operand
      %active: f32[8,100] = silu(%gate)
      %y: f32[8,100] = mul(%active, %up)
      output result = %y
    }
    """
    for row in range(begin, end):
        for j in range(800):
            gate = load_f32(gate_pointer, j)
            active = silu(gate)
            up = load_f32(up_pointer, j)
            y = mul(active, up)
            store_f32(up_pointer, j, y)

# workspaces [], in place [(0, 0), (1, 0)]
