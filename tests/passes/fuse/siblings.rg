// One pass over %g makes both the product and the two sums; a sum is not read by its own kernel.
// before
graph g {
  %g: f32[8,16] = input tangent "y"
  %x: f32[8,16] = input residual "x"
  %dw: f32[16] = sum(%g) [axes=[0], keepdim=false]
  %p: f32[8,16] = mul(%g, %x)
  %total: f32[] = sum(%p) [axes=[0, 1], keepdim=false]
  %scaled: f32[8,16] = mul(%p, %total)
  output gradient "w" = %dw
  output gradient "x" = %scaled
}
// after
graph g {
  %g: f32[8,16] = input tangent "y"
  %x: f32[8,16] = input residual "x"
  %dw: f32[16], %p: f32[8,16], %total: f32[] = fused(%g, %x) [kind="rows"] {
    %g: f32[8,16] = input operand
    %x: f32[8,16] = input operand
    %dw: f32[16] = sum(%g) [axes=[0], keepdim=false]
    %p: f32[8,16] = mul(%g, %x)
    %total: f32[] = sum(%p) [axes=[0, 1], keepdim=false]
    output result = %dw
    output result = %p
    output result = %total
  }
  %scaled: f32[8,16] = fused(%p, %total) [kind="rows"] {
    %p: f32[8,16] = input operand
    %total: f32[] = input operand
    %scaled: f32[8,16] = mul(%p, %total)
    output result = %scaled
  }
  output gradient "w" = %dw
  output gradient "x" = %scaled
}
