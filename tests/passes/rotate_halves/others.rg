// Both halves negated, and halves in place; unequal parts and halves of different values stay.
// before
graph g {
  %x: f32[4,6] = input argument "x"
  %z: f32[4,6] = input argument "z"
  %a: f32[2,6] = slice(%x) [axis=0, start=0, step=1, stop=2]
  %b: f32[2,6] = slice(%x) [axis=0, start=2, step=1, stop=4]
  %na: f32[2,6] = neg(%a)
  %nb: f32[2,6] = neg(%b)
  %both: f32[4,6] = concatenate(%nb, %na) [axis=0]
  %straight: f32[4,6] = concatenate(%a, %nb) [axis=0]
  %zb: f32[2,6] = slice(%z) [axis=0, start=2, step=1, stop=4]
  %mixed: f32[4,6] = concatenate(%zb, %a) [axis=0]
  %long: f32[3,6] = slice(%x) [axis=0, start=1, step=1, stop=4]
  %short: f32[1,6] = slice(%x) [axis=0, start=0, step=1, stop=1]
  %unequal: f32[4,6] = concatenate(%long, %short) [axis=0]
  output result "both" = %both
  output result "straight" = %straight
  output result "mixed" = %mixed
  output result "unequal" = %unequal
}
// after
graph g {
  %x: f32[4,6] = input argument "x"
  %z: f32[4,6] = input argument "z"
  %a: f32[2,6] = slice(%x) [axis=0, start=0, step=1, stop=2]
  %both.split: f32[2,2,6] = reshape(%x) [shape=[2, 2, 6]]
  %both.flipped: f32[2,2,6] = flip(%both.split) [axis=0]
  %both.negated: f32[2,2,6] = neg(%both.flipped)
  %both: f32[4,6] = reshape(%both.negated) [shape=[4, 6]]
  %straight.split: f32[2,2,6] = reshape(%x) [shape=[2, 2, 6]]
  %straight.half: i32[2,1,1] = iota() [dtype=i32, length=2, shape=[2, 1, 1], start=0, step=1]
  %straight.is_negated: b8[2,1,1] = eq(%straight.half, 1)
  %straight.negated: f32[2,2,6] = neg(%straight.split)
  %straight.rotated: f32[2,2,6] = where(%straight.is_negated, %straight.negated, %straight.split)
  %straight: f32[4,6] = reshape(%straight.rotated) [shape=[4, 6]]
  %zb: f32[2,6] = slice(%z) [axis=0, start=2, step=1, stop=4]
  %mixed: f32[4,6] = concatenate(%zb, %a) [axis=0]
  %long: f32[3,6] = slice(%x) [axis=0, start=1, step=1, stop=4]
  %short: f32[1,6] = slice(%x) [axis=0, start=0, step=1, stop=1]
  %unequal: f32[4,6] = concatenate(%long, %short) [axis=0]
  output result "both" = %both
  output result "straight" = %straight
  output result "mixed" = %mixed
  output result "unequal" = %unequal
}
