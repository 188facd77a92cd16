Pointwise ops broadcast by themselves; where every operand was expanded, the small op is enough.
// before
graph g {
  %x: f32[3,4] = input argument "x"
  %row: f32[4] = input argument "row"
  %column: f32[3,1] = input argument "column"
  %s: bf16[] = input argument "s"
  %row_e: f32[3,4] = expand(%row) [shape=[3,4]]
  %column_e: f32[3,4] = expand(%column) [shape=[3,4]]
  %row_r: f32[1,4] = reshape(%row) [shape=[1,4]]
  %a: f32[3,4] = add(%x, %row_e)
  %b: f32[3,4] = mul(%column_e, %row_e)
  %c: f32[3,4] = sub(%x, %row_r)
  %s_e: bf16[3,4] = expand(%s) [shape=[3,4]]
  %wide: f32[3,4] = cast(%s_e) [dtype=f32]
  %scaled: f32[3,4] = mul(%wide, 2.5)
  %d: f32[3,4] = mul(%x, %scaled)
  %lead: f32[1,4] = add(%row_r, 1.5)
  %e: f32[3,4] = maximum(%column_e, 0.0)
  %total: f32[3] = sum(%e) [axes=[1]]
  output result "a" = %a
  output result "b" = %b
  output result "c" = %c
  output result "d" = %d
  output result "lead" = %lead
  output result "total" = %total
}
// after
graph g {
  %x: f32[3,4] = input argument "x"
  %row: f32[4] = input argument "row"
  %column: f32[3,1] = input argument "column"
  %s: bf16[] = input argument "s"
  %row_r: f32[1,4] = reshape(%row) [shape=[1, 4]]
  %a: f32[3,4] = add(%x, %row)
  %b: f32[3,4] = mul(%column, %row)
  %c: f32[3,4] = sub(%x, %row)
  %wide.narrow: f32[] = cast(%s) [dtype=f32]
  %scaled.narrow: f32[] = mul(%wide.narrow, 2.5)
  %d: f32[3,4] = mul(%x, %scaled.narrow)
  %lead: f32[1,4] = add(%row_r, 1.5)
  %e.narrow: f32[3,1] = maximum(%column, 0.0)
  %e: f32[3,4] = expand(%e.narrow) [shape=[3, 4]]
  %total: f32[3] = sum(%e) [axes=[1]]
  output result "a" = %a
  output result "b" = %b
  output result "c" = %c
  output result "d" = %d
  output result "lead" = %lead
  output result "total" = %total
}
