Positions stay positions under integer arithmetic, as long as their type holds them.
// before
graph g {
  %i: i64[6] = iota() [dtype=i64, length=6, start=0, step=1]
  %a: i64[6] = mul(%i, 4)
  %b: i64[6] = add(3, %a)
  %c: i64[6] = sub(%b, 1)
  %d: i64[6] = sub(10, %c)
  %short: i32[6] = cast(%d) [dtype=i32]
  %float: bf16[6] = cast(%d) [dtype=bf16]
  %byte: u8[6] = cast(%d) [dtype=u8]
  %square: i64[6] = mul(%i, %i)
  output result "short" = %short
  output result "float" = %float
  output result "byte" = %byte
  output result "square" = %square
}
// after
graph g {
  %i: i64[6] = iota() [dtype=i64, length=6, start=0, step=1]
  %d: i64[6] = iota() [dtype=i64, length=6, start=8, step=-4]
  %short: i32[6] = iota() [dtype=i32, length=6, start=8, step=-4]
  %float: bf16[6] = iota() [dtype=bf16, length=6, start=8, step=-4]
  %byte: u8[6] = cast(%d) [dtype=u8]
  %square: i64[6] = mul(%i, %i)
  output result "short" = %short
  output result "float" = %float
  output result "byte" = %byte
  output result "square" = %square
}
