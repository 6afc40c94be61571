// What the formal languages mean, for readers who meet them here first.

const LISTOPS = {
  about:
    "ListOps is arithmetic with lists of digits: [MAX takes the largest, [MIN the smallest, [MED the median, [SM the sum, of which only the last digit counts; ] ends a list.",
  tokens: {
    "[MAX": "begins a list: its largest digit",
    "[MIN": "begins a list: its smallest digit",
    "[MED": "begins a list: its median, rounded down",
    "[SM": "begins a list: the last digit of its sum",
    "]": "ends a list",
  },
  labels: {},
};

const LOGIC = {
  about:
    "Which relation holds between two formulas? = they mean the same, < the first implies the second, > the second implies the first, ^ each is the other's negation, | never both are true, v at least one is always true, # none of these.",
  tokens: {},
  labels: {
    "=": "they mean the same",
    "<": "the first implies the second",
    ">": "the second implies the first",
    "^": "each is the other's negation",
    "|": "they are never both true",
    v: "at least one is always true",
    "#": "none of the other relations",
  },
};

const NOTHING = { about: "", tokens: {}, labels: {} };
const TASKS = { listops: LISTOPS, logic: LOGIC };

export const explainTask = (name) => (Object.hasOwn(TASKS, name) ? TASKS[name] : NOTHING);
