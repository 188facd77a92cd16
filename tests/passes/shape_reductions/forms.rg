// Rows keep their axis, kept axes behind reduced ones become one, middle axes stay.
// tolerance 1e-6
// before
graph g {
  %x: f32[2,3,4] = input argument "x"
  %row: f32[2,3] = sum(%x) [axes=[2], keepdim=false]
  %kept: f32[2,1,1] = mean(%x) [axes=[1, 2], keepdim=true]
  %columns: f32[3,4] = sum(%x) [axes=[0], keepdim=false]
  %all: f32[] = mean(%x) [axes=[0, 1, 2], keepdim=false]
  %largest: f32[] = amax(%x) [axes=[0, 1, 2], keepdim=false]
  %middle: f32[2,4] = sum(%x) [axes=[1], keepdim=false]
  output result "row" = %row
  output result "kept" = %kept
  output result "columns" = %columns
  output result "all" = %all
  output result "largest" = %largest
  output result "middle" = %middle
}
// after
graph g {
  %x: f32[2,3,4] = input argument "x"
  %row.row: f32[2,3,1] = sum(%x) [axes=[2], dtype=f32, keepdim=true]
  %row: f32[2,3] = reshape(%row.row) [shape=[2, 3]]
  %kept.shaped: f32[2,12] = reshape(%x) [shape=[2, 12]]
  %kept.row: f32[2,1] = mean(%kept.shaped) [axes=[1], keepdim=true]
  %kept: f32[2,1,1] = reshape(%kept.row) [shape=[2, 1, 1]]
  %columns.shaped: f32[2,12] = reshape(%x) [shape=[2, 12]]
  %columns.total: f32[12] = sum(%columns.shaped) [axes=[0], dtype=f32, keepdim=false]
  %columns: f32[3,4] = reshape(%columns.total) [shape=[3, 4]]
  %all.total: f32[] = sum(%x) [axes=[0, 1, 2], dtype=f32, keepdim=false]
  %all.quotient: f32[] = div(%all.total, 24)
  %all: f32[] = reshape(%all.quotient) [shape=[]]
  %largest: f32[] = amax(%x) [axes=[0, 1, 2], keepdim=false]
  %middle: f32[2,4] = sum(%x) [axes=[1], keepdim=false]
  output result "row" = %row
  output result "kept" = %kept
  output result "columns" = %columns
  output result "all" = %all
  output result "largest" = %largest
  output result "middle" = %middle
}
