Neutral elements. x + 0.0 and x * 0.0 stay for floats: they change -0.0 and NaN.
// before
graph g {
  %x: f32[8,2] = input argument "x"
  %n: i64[4] = input argument "n"
  %b: b8[4] = input argument "b"
  %a: f32[8,2] = add(%x, -0.0)
  %c: f32[8,2] = sub(%a, 0.0)
  %d: f32[8,2] = mul(1.0, %c)
  %e: f32[8,2] = div(%d, 1)
  %kept: f32[8,2] = add(%e, 0.0)
  %zero: f32[8,2] = mul(%x, 0.0)
  %turned: f32[8,2] = sub(0.0, %x)
  %i: i64[4] = add(0, %n)
  %j: i64[4] = mul(%i, 1)
  %k: i64[4] = sub(%j, 0)
  %both: b8[4] = bitwise_and(%b, true)
  %either: b8[4] = logical_or(false, %both)
  output result "kept" = %kept
  output result "zero" = %zero
  output result "turned" = %turned
  output result "k" = %k
  output result "either" = %either
}
// after
graph g {
  %x: f32[8,2] = input argument "x"
  %n: i64[4] = input argument "n"
  %b: b8[4] = input argument "b"
  %kept: f32[8,2] = add(%x, 0.0)
  %zero: f32[8,2] = mul(%x, 0.0)
  %turned: f32[8,2] = sub(0.0, %x)
  output result "kept" = %kept
  output result "zero" = %zero
  output result "turned" = %turned
  output result "k" = %n
  output result "either" = %b
}
