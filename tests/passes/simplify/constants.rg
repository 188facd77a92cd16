Constants are numbers where that keeps the shape; pow keeps a tensor, transcendentals are not folded.
// before
graph g {
  %x: bf16[3,4] = input argument "x"
  %row: bf16[4] = input argument "row"
  %b: b8[4] = input argument "b"
  %tenth: bf16[3,4] = full() [dtype=bf16, shape=[3,4], value=0.1]
  %one: bf16[] = full() [dtype=bf16, shape=[], value=1]
  %sum: bf16[3,4] = add(%tenth, %one)
  %wide: f32[3,4] = cast(%sum) [dtype=f32]
  %folded: f32[3,4] = mul(%wide, 0.5)
  %scaled: bf16[3,4] = mul(%x, %tenth)
  %grown: bf16[3,4] = mul(%row, %tenth)
  %same: bf16[3,4] = mul(%x, %one)
  %raised: bf16[3,4] = pow(%x, %one)
  %e: bf16[] = exp(%one)
  %mask: bf16[4] = full() [dtype=bf16, shape=[4], value=-inf]
  %zero: bf16[4] = full() [dtype=bf16, shape=[4], value=0.0]
  %chosen: bf16[4] = where(%b, %zero, %mask)
  %moved: bf16[4,3] = permute(%tenth) [axes=[1,0]]
  %cut: bf16[2,3] = slice(%moved) [axis=0, start=0, stop=2, step=1]
  %top: bf16[3] = amax(%cut) [axes=[0]]
  %kept: bf16[] = sum(%zero) [axes=[0]]
  output result "folded" = %folded
  output result "scaled" = %scaled
  output result "grown" = %grown
  output result "same" = %same
  output result "raised" = %raised
  output result "e" = %e
  output result "chosen" = %chosen
  output result "top" = %top
  output result "kept" = %kept
}
// after
graph g {
  %x: bf16[3,4] = input argument "x"
  %row: bf16[4] = input argument "row"
  %b: b8[4] = input argument "b"
  %tenth: bf16[3,4] = full() [dtype=bf16, shape=[3, 4], value=0.1]
  %one: bf16[] = full() [dtype=bf16, shape=[], value=1]
  %folded: f32[3,4] = full() [dtype=f32, shape=[3, 4], value=0.55078125]
  %scaled: bf16[3,4] = mul(%x, 0.10009765625)
  %grown: bf16[3,4] = mul(%row, %tenth)
  %raised: bf16[3,4] = pow(%x, %one)
  %e: bf16[] = exp(%one)
  %zero: bf16[4] = full() [dtype=bf16, shape=[4], value=0.0]
  %chosen: bf16[4] = where(%b, 0.0, -inf) [dtype=bf16]
  %top: bf16[3] = full() [dtype=bf16, shape=[3], value=0.1]
  %kept: bf16[] = sum(%zero) [axes=[0]]
  output result "folded" = %folded
  output result "scaled" = %scaled
  output result "grown" = %grown
  output result "same" = %x
  output result "raised" = %raised
  output result "e" = %e
  output result "chosen" = %chosen
  output result "top" = %top
  output result "kept" = %kept
}
