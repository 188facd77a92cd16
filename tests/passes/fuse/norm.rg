// Residual, norm and activation are one kernel; the product on the way out is none of it.
// before
graph g {
  %x: bf16[8,16] = input argument "x"
  %layers.3.out: bf16[8,16] = input argument "r"
  %weight: bf16[16] = input parameter "layers.3.norm.weight"
  %w: bf16[16,4] = input parameter "layers.3.proj.weight"
  %layers.3.add: bf16[8,16] = add(%x, %layers.3.out)  # model.py:12 @layers.3
  %layers.3.norm.wide: f32[8,16] = cast(%layers.3.add) [dtype=f32]  # model.py:13 @layers.3.norm
  %layers.3.norm.square: f32[8,16] = mul(%layers.3.norm.wide, %layers.3.norm.wide)
  %layers.3.norm.mean: f32[8,1] = mean(%layers.3.norm.square) [axes=[1], keepdim=true]
  %layers.3.norm.rstd: f32[8,1] = rsqrt(%layers.3.norm.mean)
  %layers.3.norm.normal: f32[8,16] = mul(%layers.3.norm.wide, %layers.3.norm.rstd)
  %layers.3.norm.rounded: bf16[8,16] = cast(%layers.3.norm.normal) [dtype=bf16]
  %layers.3.norm.y: bf16[8,16] = mul(%layers.3.norm.rounded, %weight)
  %p: bf16[8,4] = matmul(%layers.3.norm.y, %w)
  output result "p" = %p
  output result "add" = %layers.3.add
  output residual "layers.3.norm.rstd" = %layers.3.norm.rstd
}
// after
graph g {
  %x: bf16[8,16] = input argument "x"
  %layers.3.out: bf16[8,16] = input argument "r"
  %weight: bf16[16] = input parameter "layers.3.norm.weight"
  %w: bf16[16,4] = input parameter "layers.3.proj.weight"
  %layers.3.add: bf16[8,16], %layers.3.norm.rstd: f32[8,1], %layers.3.norm.y: bf16[8,16] = fused(%x, %layers.3.out, %weight) [kind="rows"] {  # model.py:12 @layers.3
    %x: bf16[8,16] = input operand
    %out: bf16[8,16] = input operand
    %weight: bf16[16] = input operand
    %add: bf16[8,16] = add(%x, %out)  # model.py:12 @layers.*
    %norm.wide: f32[8,16] = cast(%add) [dtype=f32]  # model.py:13 @layers.*.norm
    %norm.square: f32[8,16] = mul(%norm.wide, %norm.wide)
    %norm.mean: f32[8,1] = mean(%norm.square) [axes=[1], keepdim=true]
    %norm.rstd: f32[8,1] = rsqrt(%norm.mean)
    %norm.normal: f32[8,16] = mul(%norm.wide, %norm.rstd)
    %norm.rounded: bf16[8,16] = cast(%norm.normal) [dtype=bf16]
    %norm.y: bf16[8,16] = mul(%norm.rounded, %weight)
    output result = %add
    output result = %norm.rstd
    output result = %norm.y
  }
  %p: bf16[8,4] = matmul(%layers.3.norm.y, %w)
  output result "p" = %p
  output result "add" = %layers.3.add
  output residual "layers.3.norm.rstd" = %layers.3.norm.rstd
}
