What undoes itself goes in pairs, what changes nothing the second time goes once.
// before
graph g {
  %x: f32[10] = input argument "x"
  %b: b8[4] = input argument "b"
  %n1: f32[10] = neg(%x)
  %n2: f32[10] = neg(%n1)
  %r1: f32[10] = relu(%n2)
  %r2: f32[10] = relu(%r1)
  %f1: f32[10] = floor(%x)
  %f2: f32[10] = floor(%f1)
  %l1: b8[4] = logical_not(%b)
  %l2: b8[4] = logical_not(%l1)
  %t1: b8[10] = logical_not(%x)
  %t2: b8[10] = logical_not(%t1)
  %m: f32[10] = maximum(%x, %x)
  %low: f32[10] = maximum(%m, -inf)
  %high: f32[10] = minimum(%low, inf)
  %wins: f32[10] = maximum(%x, inf)
  output result "r" = %r2
  output result "f" = %f2
  output result "l" = %l2
  output result "t" = %t2
  output result "high" = %high
  output result "wins" = %wins
}
// after
graph g {
  %x: f32[10] = input argument "x"
  %b: b8[4] = input argument "b"
  %r1: f32[10] = relu(%x)
  %f1: f32[10] = floor(%x)
  %t1: b8[10] = logical_not(%x)
  %t2: b8[10] = logical_not(%t1)
  %wins: f32[10] = maximum(%x, inf)
  output result "r" = %r1
  output result "f" = %f1
  output result "l" = %b
  output result "t" = %t2
  output result "high" = %x
  output result "wins" = %wins
}
