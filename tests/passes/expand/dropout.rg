// Forward and backward draw the same mask; equal ops are merged later.
// before
graph g {
  %x: bf16[2,3] = input argument "x"
  %key: i64[] = input key
  %y: bf16[2,3] = dropout(%x, %key) [probability=0.1, stream=3]
  output result "y" = %y
}
// after
graph g {
  %x: bf16[2,3] = input argument "x"
  %key: i64[] = input key
  %y.kept: b8[2,3] = bernoulli(%key) [bits=16, probability=0.1, shape=[2, 3], stream=3]
  %y.x.f32: f32[2,3] = cast(%x) [dtype=f32]
  %y.scaled: f32[2,3] = mul(%y.x.f32, 1.1111111111111112)
  %y.chosen: f32[2,3] = where(%y.kept, %y.scaled, 0)
  %y: bf16[2,3] = cast(%y.chosen) [dtype=bf16]
  output result "y" = %y
}
