// Rotary embedding and, from the tangent, its derivative; the sine is multiplied on the turned view.
// before
graph g {
  %q: f32[2,3,5,8] = input argument "q"
  %cos: f32[1,5,8] = input constant "cos"
  %sin: f32[1,5,8] = input constant "sin"
  %t: f32[2,3,5,8] = input tangent "y"
  %a: f32[2,3,5,4] = slice(%q) [axis=3, start=0, step=1, stop=4]
  %b: f32[2,3,5,4] = slice(%q) [axis=3, start=4, step=1, stop=8]
  %n: f32[2,3,5,4] = neg(%b)
  %r: f32[2,3,5,8] = concatenate(%n, %a) [axis=3]
  %straight: f32[2,3,5,8] = mul(%q, %cos)
  %turned: f32[2,3,5,8] = mul(%r, %sin)
  %y: f32[2,3,5,8] = add(%straight, %turned)
  %g: f32[2,3,5,8] = mul(%t, %sin)
  %ga: f32[2,3,5,4] = slice(%g) [axis=3, start=0, step=1, stop=4]
  %gb: f32[2,3,5,4] = slice(%g) [axis=3, start=4, step=1, stop=8]
  %gn: f32[2,3,5,4] = neg(%ga)
  %high: f32[2,3,5,8] = pad(%gn) [high=[0, 0, 0, 0], low=[0, 0, 0, 4], value=0.0]
  %low: f32[2,3,5,8] = pad(%gb) [high=[0, 0, 0, 4], low=[0, 0, 0, 0], value=0.0]
  %d: f32[2,3,5,8] = add(%high, %low)
  output result "y" = %y
  output gradient "argument:q" = %d
}
// after
graph g {
  %q: f32[2,3,5,8] = input argument "q"
  %cos: f32[1,5,8] = input constant "cos"
  %sin: f32[1,5,8] = input constant "sin"
  %t: f32[2,3,5,8] = input tangent "y"
  %r.split: f32[2,3,5,2,4] = reshape(%q) [shape=[2, 3, 5, 2, 4]]
  %r.flipped: f32[2,3,5,2,4] = flip(%r.split) [axis=3]
  %r.half: i32[2,1] = iota() [dtype=i32, length=2, shape=[2, 1], start=0, step=1]
  %r.is_negated: b8[2,1] = eq(%r.half, 0)
  %r.negated: f32[2,3,5,2,4] = neg(%r.flipped)
  %r.rotated: f32[2,3,5,2,4] = where(%r.is_negated, %r.negated, %r.flipped)
  %r: f32[2,3,5,8] = reshape(%r.rotated) [shape=[2, 3, 5, 8]]
  %straight: f32[2,3,5,8] = mul(%q, %cos)
  %turned: f32[2,3,5,8] = mul(%r, %sin)
  %y: f32[2,3,5,8] = add(%straight, %turned)
  %d.split: f32[2,3,5,2,4] = reshape(%t) [shape=[2, 3, 5, 2, 4]]
  %d.flipped: f32[2,3,5,2,4] = flip(%d.split) [axis=3]
  %d.split_2: f32[1,5,2,4] = reshape(%sin) [shape=[1, 5, 2, 4]]
  %d.flipped_2: f32[1,5,2,4] = flip(%d.split_2) [axis=2]
  %d.g: f32[2,3,5,2,4] = mul(%d.flipped, %d.flipped_2)
  %d.half: i32[2,1] = iota() [dtype=i32, length=2, shape=[2, 1], start=0, step=1]
  %d.is_negated: b8[2,1] = eq(%d.half, 1)
  %d.negated: f32[2,3,5,2,4] = neg(%d.g)
  %d.rotated: f32[2,3,5,2,4] = where(%d.is_negated, %d.negated, %d.g)
  %d.zeros_added: f32[2,3,5,2,4] = add(%d.rotated, 0.0)
  %d: f32[2,3,5,8] = reshape(%d.zeros_added) [shape=[2, 3, 5, 8]]
  output result "y" = %y
  output gradient "argument:q" = %d
}
