// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a mesh of tetrahedra that is refined where a front passes: connectivity as integers.
//! In from: nothing. Out to: `datasets`.
//! Invariants: a tetrahedron is cut into eight (Bey); elements stand in the order of a Z curve over
//! their first cubes, and go to ranks in equal runs; a node keeps its number once it has one.

use super::{Program, State, Variable};
use crate::as_f64;
use std::collections::HashMap;

/// How often an element may be cut.
const LEVELS: i8 = 2;
/// A node by its place on the finest lattice.
type Node = [u16; 3];
type Corners = [Node; 4];

/// Of the integers that name nodes and elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// Numbers within a rank, of 32 bits.
    Narrow,
    /// Numbers over all ranks, of 64 bits.
    Wide,
}

#[derive(Debug, Clone, Copy)]
struct Element {
    corners: Corners,
    level: i8,
    /// The first element it was cut from, and by three bits a level which of the eight.
    path: i64,
}

/// The mesh.
#[derive(Debug)]
pub struct Mesh {
    width: Width,
    /// First cubes along an edge.
    edge: u16,
    elements: Vec<Element>,
    numbers: HashMap<Node, i64>,
    steps: i64,
}

impl Mesh {
    /// The mesh before the front moves.
    pub fn new(quick: bool, width: Width) -> Self {
        let mut mesh = Self {
            width,
            edge: if quick { 6 } else { 24 },
            elements: Vec::new(),
            numbers: HashMap::new(),
            steps: 0,
        };
        mesh.adapt();
        mesh
    }

    /// Cuts anew what is near the front, and numbers new nodes.
    fn adapt(&mut self) {
        let mut found = Vec::new();
        let edge = self.edge;
        let mut cubes: Vec<(u64, Node)> = Vec::new();
        for z in 0..edge {
            for y in 0..edge {
                for x in 0..edge {
                    cubes.push((curve([z, y, x]), [z, y, x]));
                }
            }
        }
        cubes.sort_unstable();
        for (number, (_, cube)) in (0_i64..).zip(cubes) {
            for (way, corners) in (0_i64..).zip(first_elements(cube)) {
                let element = Element {
                    corners,
                    level: 0,
                    path: (number * 6 + way) << (3 * LEVELS),
                };
                self.cut(element, &mut found);
            }
        }
        for node in found.iter().flat_map(|element| element.corners) {
            let next = i64::try_from(self.numbers.len()).unwrap_or(i64::MAX);
            self.numbers.entry(node).or_insert(next);
        }
        self.elements = found;
    }

    fn cut(&self, element: Element, found: &mut Vec<Element>) {
        if element.level == LEVELS || !self.is_near(&element) {
            found.push(element);
            return;
        }
        let level = element.level + 1;
        for (which, corners) in (0_i64..).zip(eight(&element.corners)) {
            let child = Element {
                corners,
                level,
                path: element.path | which << (3 * (LEVELS - level)),
            };
            self.cut(child, found);
        }
    }

    /// Whether the front, a sphere that grows, passes within the size of the element.
    fn is_near(&self, element: &Element) -> bool {
        let fine = f64::from(self.edge << LEVELS);
        let middle = |axis: usize| {
            let sum: f64 = element
                .corners
                .iter()
                .map(|node| f64::from(node[axis]))
                .sum();
            0.25 * sum / fine
        };
        let front = 0.15 + 0.012 * as_f64(self.steps.unsigned_abs());
        let distance = (middle(0) - 0.4).hypot((middle(1) - 0.45).hypot(middle(2) - 0.5));
        let size = 1.0 / f64::from(self.edge << element.level);
        (distance - front).abs() < 0.7 * size
    }

    /// For each face of each element, the element behind it, if one has the same face.
    fn neighbours(&self) -> Vec<[Option<usize>; 4]> {
        let mut faces: HashMap<[Node; 3], (usize, usize)> = HashMap::new();
        let mut found = vec![[None; 4]; self.elements.len()];
        for (number, element) in self.elements.iter().enumerate() {
            for face in 0..4 {
                let [a, b, c] = [1, 2, 3].map(|turn| element.corners[(face + turn) % 4]);
                let mut key = [a, b, c];
                key.sort_unstable();
                if let Some((other, its)) = faces.remove(&key) {
                    found[number][face] = Some(other);
                    found[other][its] = Some(number);
                } else {
                    faces.insert(key, (number, face));
                }
            }
        }
        found
    }

    fn number(&self, node: Node) -> i64 {
        self.numbers.get(&node).copied().unwrap_or(-1)
    }

    fn rank(
        &self,
        run: std::ops::Range<usize>,
        neighbours: &[[Option<usize>; 4]],
    ) -> Vec<Variable> {
        let mine = &self.elements[run.clone()];
        let mut places: HashMap<Node, i32> = HashMap::new();
        let mut nodes: Vec<Node> = Vec::new();
        let mut ghosts: HashMap<usize, i32> = HashMap::new();
        let (mut local, mut local_faces) = (Vec::new(), Vec::new());
        let (mut global, mut global_faces) = (Vec::new(), Vec::new());
        let count = i32::try_from(mine.len()).unwrap_or(i32::MAX);
        for (number, element) in run.clone().zip(mine) {
            for node in element.corners {
                local.push(*places.entry(node).or_insert_with(|| {
                    nodes.push(node);
                    i32::try_from(nodes.len() - 1).unwrap_or(i32::MAX)
                }));
                global.push(self.number(node));
            }
            for other in neighbours[number] {
                global_faces.push(other.map_or(-1, |other| i64::try_from(other).unwrap_or(-1)));
                local_faces.push(other.map_or(-1, |other| {
                    if run.contains(&other) {
                        return i32::try_from(other - run.start).unwrap_or(-1);
                    }
                    let next = count + i32::try_from(ghosts.len()).unwrap_or(0);
                    *ghosts.entry(other).or_insert(next)
                }));
            }
        }
        let numbers: Vec<i64> = nodes.iter().map(|&node| self.number(node)).collect();
        let levels: Vec<i8> = mine.iter().map(|element| element.level).collect();
        let paths: Vec<i64> = mine.iter().map(|element| element.path).collect();
        let fine = f64::from(self.edge << LEVELS);
        let places = nodes.iter().flatten().map(|&place| f64::from(place) / fine);
        let coordinates: Vec<f64> = places.collect();
        let four = [mine.len(), 4];
        let [faces, corners] = match self.width {
            Width::Narrow => [
                Variable::array("element_neighbours", &four, &local_faces),
                Variable::array("element_nodes", &four, &local),
            ],
            Width::Wide => [
                Variable::array("element_neighbours", &four, &global_faces),
                Variable::array("element_nodes", &four, &global),
            ],
        };
        vec![
            Variable::array("element_levels", &[mine.len()], &levels),
            faces,
            corners,
            Variable::array("element_paths", &[mine.len()], &paths),
            Variable::array("node_coordinates", &[nodes.len(), 3], &coordinates),
            Variable::array("node_numbers", &[nodes.len()], &numbers),
            Variable::scalar("step", self.steps),
        ]
    }
}

/// Bits of three numbers in turn.
fn curve(place: Node) -> u64 {
    let bit = |axis: usize, at: u32| u64::from(place[axis] >> at & 1) << (3 * at);
    (0..16)
        .map(|at| bit(0, at) << 2 | bit(1, at) << 1 | bit(2, at))
        .sum()
}

/// Six tetrahedra around the diagonal of a cube.
fn first_elements(cube: Node) -> [Corners; 6] {
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    orders.map(|order: [usize; 3]| {
        let mut at = cube;
        let mut corners = [at; 4];
        for (corner, axis) in (1..).zip(order) {
            at[axis] += 1;
            corners[corner] = at;
        }
        corners.map(|node| node.map(|place| place << LEVELS))
    })
}

/// The eight elements of a cut one.
fn eight(corners: &Corners) -> [Corners; 8] {
    let [a, b, c, d] = *corners;
    let middle = |one: Node, two: Node| -> Node {
        std::array::from_fn(|axis| u16::midpoint(one[axis], two[axis]))
    };
    let (ab, ac, ad) = (middle(a, b), middle(a, c), middle(a, d));
    let (bc, bd, cd) = (middle(b, c), middle(b, d), middle(c, d));
    [
        [a, ab, ac, ad],
        [ab, b, bc, bd],
        [ac, bc, c, cd],
        [ad, bd, cd, d],
        [ab, ac, ad, bd],
        [ab, ac, bc, bd],
        [ac, ad, bd, cd],
        [ac, bc, bd, cd],
    ]
}

impl Program for Mesh {
    fn step(&mut self) {
        self.steps += 1;
        self.adapt();
    }

    fn state(&self, ranks: usize) -> State {
        let neighbours = self.neighbours();
        let count = self.elements.len();
        let run = |rank: usize| count * rank / ranks..count * (rank + 1) / ranks;
        (0..ranks)
            .map(|rank| self.rank(run(rank), &neighbours))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size_f64;

    #[test]
    fn the_first_mesh_fills_the_cube() {
        let mesh = Mesh::new(true, Width::Wide);
        let volume = |element: &Element| {
            let at = |corner: usize, axis: usize| {
                f64::from(element.corners[corner][axis]) - f64::from(element.corners[0][axis])
            };
            let cross = |one: usize, two: usize| at(2, one) * at(3, two) - at(2, two) * at(3, one);
            let sum = at(1, 0) * cross(1, 2) + at(1, 1) * cross(2, 0) + at(1, 2) * cross(0, 1);
            sum.abs() / 6.0
        };
        let whole: f64 = mesh.elements.iter().map(volume).sum();
        let fine = f64::from(mesh.edge << LEVELS);
        assert!((whole - fine.powi(3)).abs() < 1e-6 * whole);
        let inner = mesh
            .neighbours()
            .iter()
            .flatten()
            .filter(|n| n.is_some())
            .count();
        assert!(size_f64(inner) > 2.0 * size_f64(mesh.elements.len()));
    }
}
