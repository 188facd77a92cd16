// Each kernel widens, creates and scales for itself rather than read what another stored.
// before
graph g {
  %x: bf16[4,4] = input argument "x"
  %s: f32[] = input argument "s"
  %w: f32[4,4] = input parameter "w"
  %wide: f32[4,4] = cast(%x) [dtype=f32]
  %one: f32[4] = full() [dtype=f32, shape=[4], value=1.0]
  %factor: f32[] = mul(%s, 0.5)
  %a: f32[4,4] = mul(%wide, %factor)
  %p: f32[4,4] = matmul(%a, %w)
  %b: f32[4,4] = add(%p, %wide)
  %c: f32[4,4] = add(%b, %one)
  %y: f32[4,4] = mul(%c, %factor)
  output result "y" = %y
}
// after
graph g {
  %x: bf16[4,4] = input argument "x"
  %s: f32[] = input argument "s"
  %w: f32[4,4] = input parameter "w"
  %a: f32[4,4] = fused(%x, %s) [kind="rows"] {
    %x: bf16[4,4] = input operand
    %s: f32[] = input operand
    %wide: f32[4,4] = cast(%x) [dtype=f32]
    %factor: f32[] = mul(%s, 0.5)
    %a: f32[4,4] = mul(%wide, %factor)
    output result = %a
  }
  %p: f32[4,4] = matmul(%a, %w)
  %y: f32[4,4] = fused(%x, %p, %s) [kind="rows"] {
    %x: bf16[4,4] = input operand
    %p: f32[4,4] = input operand
    %s: f32[] = input operand
    %wide: f32[4,4] = cast(%x) [dtype=f32]
    %b: f32[4,4] = add(%p, %wide)
    %one: f32[4] = full() [dtype=f32, shape=[4], value=1.0]
    %c: f32[4,4] = add(%b, %one)
    %factor: f32[] = mul(%s, 0.5)
    %y: f32[4,4] = mul(%c, %factor)
    output result = %y
  }
  output result "y" = %y
}
