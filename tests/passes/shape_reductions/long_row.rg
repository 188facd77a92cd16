// A long row that is the only one is everything; shorter ones, and several, stay rows.
// tolerance 1e-4
// before
graph g {
  %x: f32[1,262144] = input argument "x"
  %short: f32[1,64] = input argument "short"
  %rows: f32[2,262144] = input argument "rows"
  %mean: f32[1,1] = mean(%x) [axes=[1], keepdim=true]
  %largest: f32[1,1] = amax(%x) [axes=[1], keepdim=true]
  %of_short: f32[1,1] = mean(%short) [axes=[1], keepdim=true]
  %of_rows: f32[2,1] = mean(%rows) [axes=[1], keepdim=true]
  output result "mean" = %mean
  output result "largest" = %largest
  output result "of_short" = %of_short
  output result "of_rows" = %of_rows
}
// after
graph g {
  %x: f32[1,262144] = input argument "x"
  %short: f32[1,64] = input argument "short"
  %rows: f32[2,262144] = input argument "rows"
  %mean.total: f32[] = sum(%x) [axes=[0, 1], dtype=f32, keepdim=false]
  %mean.quotient: f32[] = div(%mean.total, 262144)
  %mean: f32[1,1] = reshape(%mean.quotient) [shape=[1, 1]]
  %largest.total: f32[] = amax(%x) [axes=[0, 1], keepdim=false]
  %largest: f32[1,1] = reshape(%largest.total) [shape=[1, 1]]
  %of_short: f32[1,1] = mean(%short) [axes=[1], keepdim=true]
  %of_rows: f32[2,1] = mean(%rows) [axes=[1], keepdim=true]
  output result "mean" = %mean
  output result "largest" = %largest
  output result "of_short" = %of_short
  output result "of_rows" = %of_rows
}
