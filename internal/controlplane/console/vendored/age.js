export {Decrypter, Encrypter, armor, identityToRecipient} from "age-encryption";
